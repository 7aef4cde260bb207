// Signature Version 4 against the examples of "Signature Calculations for the Authorization Header", in
// Amazon's reference of S3. What a server makes of our own requests is tests/cli/test_s3.py's.
#include "cache/remote/sigv4.hpp"

#include <algorithm>

#include "cache/digest/sha256.hpp"
#include "cache/fixture.hpp"
#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;

namespace {

constexpr const char* kTime = "20130524T000000Z";

AwsCredentials example_credentials() {
    return {.access_key_id = "AKIAIOSFODNN7EXAMPLE",
            .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            .region = "us-east-1"};
}

// The headers that all of the examples have, and these.
SigV4Request example(std::string_view path, std::string_view query,
                     std::vector<std::pair<std::string, std::string>> headers = {},
                     std::string_view body = {}, std::string_view method = "GET") {
    const std::string hash = sha256_of(bytes_of(body)).hex();
    headers.insert(
        headers.end(),
        {{"Host", "examplebucket.s3.amazonaws.com"}, {"x-amz-content-sha256", hash}, {"x-amz-date", kTime}});
    return {method, path, query, std::move(headers), hash};
}

std::string signature_of(const SigV4Request& request) {
    const std::string text = sigv4_authorization(example_credentials(), request, kTime);
    return text.substr(text.find("Signature=") + 10);
}

Url bucket_url(std::string path = "/kernels/cas/00", std::string port = "443") {
    Url url;
    url.scheme = port == "80" ? "http" : "https";
    url.host = "bucket.example";
    url.port = std::move(port);
    url.path = std::move(path);
    return url;
}

const auto kNow = std::chrono::sys_days(std::chrono::year(2026) / 2 / 3) + std::chrono::hours(4) +
                  std::chrono::minutes(5) + std::chrono::seconds(6);

std::vector<std::string> headers_of(const AwsCredentials& credentials, const Url& url,
                                    const std::vector<std::string>& further = {}) {
    return sigv4_headers(credentials, "PUT", url, bytes_of("body"), further, kNow);
}

std::string value_of(const std::vector<std::string>& lines, const std::string& name) {
    std::string value;
    for (const std::string& line : lines) {
        if (!line.starts_with(name + ": ")) continue;
        CHECK(value.empty());  // once
        value = line.substr(name.size() + 2);
    }
    return value;
}

}  // namespace

TEST_CASE("Signature Version 4 gives the signatures of Amazon's examples") {
    CHECK(sigv4_authorization(example_credentials(), example("/test.txt", "", {{"Range", "bytes=0-9"}}),
                              kTime) ==
          "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
          "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
          "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    const std::vector<std::pair<std::string, std::string>> put_headers = {
        {"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    // The $ of the path is signed as %24, however the URL has it.
    for (const char* path : {"/test$file.text", "/test%24file.text"}) {
        CHECK(signature_of(example(path, "", put_headers, "Welcome to Amazon S3.", "PUT")) ==
              "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    }
    CHECK(signature_of(example("/", "lifecycle")) ==
          "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    for (const char* query : {"max-keys=2&prefix=J", "prefix=J&max-keys=2"}) {
        CHECK(signature_of(example("", query)) ==
              "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    }
}

TEST_CASE("every part of a request is signed") {
    const std::string plain = signature_of(example("/a", "b=c", {{"x-amz-one", "1"}}, "body", "PUT"));
    CHECK(plain == signature_of(example("/a", "b=c", {{"X-Amz-One", "  1 "}}, "body", "PUT")));
    CHECK(plain != signature_of(example("/b", "b=c", {{"x-amz-one", "1"}}, "body", "PUT")));
    CHECK(plain != signature_of(example("/a", "b=d", {{"x-amz-one", "1"}}, "body", "PUT")));
    CHECK(plain != signature_of(example("/a", "b=c", {{"x-amz-one", "2"}}, "body", "PUT")));
    CHECK(plain != signature_of(example("/a", "b=c", {{"x-amz-one", "1"}}, "bodies", "PUT")));
    CHECK(plain != signature_of(example("/a", "b=c", {{"x-amz-one", "1"}}, "body", "GET")));
    // What a header has twice is one value.
    CHECK(signature_of(example("/a", "", {{"x-amz-one", "1"}, {"X-Amz-One", "2"}})) ==
          signature_of(example("/a", "", {{"x-amz-one", "1,2"}})));
}

TEST_CASE("a path is encoded in one way") {
    CHECK(sigv4_encoded("aZ09-._~") == "aZ09-._~");
    CHECK(sigv4_encoded("a b+c%/\xc3\xbc", "/") == "a%20b%2Bc%25/%C3%BC");
    CHECK(sigv4_encoded("a/b") == "a%2Fb");
    // A part is signed as it is meant, however it is written, and wherever in it an escape stands.
    const std::string plain = signature_of(example("/x$y$", "b$=c$"));
    CHECK(plain == signature_of(example("/x%24y$", "b%24=c$")));
    CHECK(plain == signature_of(example("/x$y%24", "b$=c%24")));
    CHECK(plain != signature_of(example("/x$y%2", "b$=c$")));
    CHECK(plain != signature_of(example("/x$y$", "b$=c%2")));
}

TEST_CASE("the headers of a signed request") {
    AwsCredentials credentials = example_credentials();
    std::vector<std::string> lines = headers_of(credentials, bucket_url());
    CHECK(lines.size() == 4);
    CHECK(value_of(lines, "Host") == "bucket.example");
    CHECK(value_of(lines, "x-amz-date") == "20260203T040506Z");
    CHECK(value_of(lines, "x-amz-content-sha256") == sha256_of(bytes_of("body")).hex());
    const std::string authorization = value_of(lines, "Authorization");
    CHECK(authorization.starts_with(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260203/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="));
    CHECK(value_of(headers_of(credentials, bucket_url("/x", "80")), "Host") == "bucket.example");
    CHECK(value_of(headers_of(credentials, bucket_url("/x", "9000")), "Host") == "bucket.example:9000");

    credentials.session_token = "to/ken==";
    lines = headers_of(credentials, bucket_url());
    CHECK(value_of(lines, "x-amz-security-token") == "to/ken==");
    CHECK(value_of(lines, "Authorization")
              .find("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,") !=
          std::string::npos);
}

TEST_CASE("further headers go along, signed if they are S3's, and replace none that signing makes") {
    const std::vector<std::string> lines =
        headers_of(example_credentials(), bucket_url(),
                   {"X-Amz-Request-Payer: requester", "X-Team: a", "x-amz-empty:", "Authorization: Basic x",
                    "HOST: elsewhere", "X-Amz-Date: then", "x-amz-content-sha256: none",
                    "X-Amz-Security-Token: another"});
    CHECK(lines.size() == 7);
    CHECK(value_of(lines, "X-Amz-Request-Payer") == "requester");
    CHECK(value_of(lines, "X-Team") == "a");
    CHECK(value_of(lines, "Authorization")
              .find("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-request-payer,") !=
          std::string::npos);
    CHECK(std::ranges::none_of(lines, [](const std::string& line) {
        return line.find("elsewhere") != line.npos || line.find("another") != line.npos;
    }));
}
