"""An S3 server with one bucket that checks signatures, written from AWS's description of Signature Version 4
("Authenticating Requests: Using the Authorization Header") and of S3's error answers. It knows path style alone."""

import datetime
import hashlib
import hmac
import re
import urllib.parse

from remote_server import RemoteServer

BUCKET = "kernels"
REGION = "eu-test-1"
KEY_ID = "AKIDHUSHHUSHHUSH"
SECRET = "hush+secret/hush"
SKEW = datetime.timedelta(minutes=15)
AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=(?P<id>[^/]+)/(?P<date>\d{8})/(?P<region>[^/]+)/s3/aws4_request, ?"
                           r"SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})")


class Refused(Exception):
    def __init__(self, status, code):
        super().__init__(code)
        self.status, self.code = status, code


def encoded(text, safe=""):
    """UriEncode of AWS's description: all but its unreserved characters, in capital digits."""
    return urllib.parse.quote(text, safe=safe + "-._~")


def hmac_of(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature_of(secret, scope, time, request):
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac_of(key, part)
    digest = hashlib.sha256(request.encode()).hexdigest()
    return hmac_of(key, "\n".join(["AWS4-HMAC-SHA256", time, scope, digest])).hex()


class S3Server(RemoteServer):
    """with S3Server(folder) as server: server.environment() is what its clients need.

    token: what x-amz-security-token has to be. may_list: whether a key that is not there is a 404, and not a 403.
    open_to_all: whether requests that nobody signed are answered."""

    def __init__(self, folder, token=None, may_list=True, open_to_all=False):
        super().__init__(folder)
        self.token, self.may_list, self.open_to_all = token, may_list, open_to_all
        self.secrets = {KEY_ID: SECRET}
        self.clock_is_off_by = datetime.timedelta(0)
        self.refused_writes = False
        self.refusals = []  # the codes of what was refused
        self.busy = None    # called with the handler; True: SlowDown
        self.manner = self.serve_s3

    @property
    def endpoint(self):
        return self.address.removesuffix("/cache")

    def environment(self, **changes):
        """For run_cli; None takes a variable away."""
        env = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": self.token,
               "AWS_REGION": REGION, "AWS_ENDPOINT_URL": self.endpoint, **changes}
        return {name: value for name, value in env.items() if value is not None}

    def keys(self):
        """The names of the objects that the bucket has."""
        bucket = self.folder / BUCKET
        return sorted(str(file.relative_to(bucket)) for file in bucket.rglob("*") if file.is_file())

    def serve_s3(self, handler):
        try:
            if self.busy and self.busy(handler):
                raise Refused(503, "SlowDown")
            self.check(handler)
            self.keep_object(handler)
        except Refused as refusal:
            self.refusals.append(refusal.code)
            page = (f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{refusal.code}</Code><Message>hush</Message>'
                    f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>").encode()
            handler.answer(refusal.status, page)
        return True

    def check(self, handler):
        authorization = handler.headers.get("Authorization")
        if authorization is None:
            if not self.open_to_all:
                raise Refused(403, "AccessDenied")
            return
        found = AUTHORIZATION.fullmatch(authorization)
        if not found:
            raise Refused(400, "AuthorizationHeaderMalformed")
        self.check_time(handler, found)
        if found["region"] != REGION:
            raise Refused(400, "AuthorizationHeaderMalformed")
        if found["id"] not in self.secrets:
            raise Refused(403, "InvalidAccessKeyId")
        self.check_signature(handler, found)
        if handler.headers.get("x-amz-security-token") != self.token:
            raise Refused(400, "InvalidToken")

    def check_time(self, handler, found):
        try:
            time = datetime.datetime.strptime(handler.headers.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ")
        except ValueError:
            raise Refused(403, "AccessDenied") from None
        if time.strftime("%Y%m%d") != found["date"]:
            raise Refused(403, "SignatureDoesNotMatch")
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) + self.clock_is_off_by
        if abs(now - time) > SKEW:
            raise Refused(403, "RequestTimeTooSkewed")

    def check_signature(self, handler, found):
        names = found["headers"].split(";")
        sent = [name.lower() for name in handler.headers]
        # The host, and every x-amz header, have to be signed.
        unsigned = [name for name in sent if name.startswith("x-amz-") and name not in names]
        if names != sorted(set(names)) or "host" not in names or unsigned or len(set(sent)) != len(sent):
            raise Refused(403, "AccessDenied")
        payload = handler.headers.get("x-amz-content-sha256", "")
        if payload != hashlib.sha256(handler.body).hexdigest():
            raise Refused(400, "XAmzContentSHA256Mismatch")
        path, _, query = handler.path.partition("?")
        pairs = sorted((encoded(name), encoded(value))
                       for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True))
        headers = "".join(f"{name}:{' '.join(handler.headers.get(name, '').split())}\n" for name in names)
        request = "\n".join([handler.command, encoded(urllib.parse.unquote_to_bytes(path), "/"),
                             "&".join("=".join(pair) for pair in pairs), headers, found["headers"], payload])
        scope = f"{found['date']}/{REGION}/s3/aws4_request"
        right = signature_of(self.secrets[found["id"]], scope, handler.headers["x-amz-date"], request)
        if not hmac.compare_digest(right, found["signature"]):
            raise Refused(403, "SignatureDoesNotMatch")

    def keep_object(self, handler):
        bucket, _, key = urllib.parse.unquote(handler.path.partition("?")[0]).lstrip("/").partition("/")
        if bucket != BUCKET:
            raise Refused(404, "NoSuchBucket")
        file = self.folder / BUCKET / key
        if handler.command == "PUT":
            if self.refused_writes:
                raise Refused(403, "AccessDenied")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(handler.body)
            handler.answer(200)
        elif file.is_file():
            handler.answer(200, file.read_bytes())
        elif self.may_list:
            raise Refused(404, "NoSuchKey")
        else:
            raise Refused(403, "AccessDenied")
