// What holds for every command, for the program's own help and for each man page.
#pragma once

#include <string_view>

namespace attnsmith::cli {

struct Explained {
    std::string_view name;
    std::string_view text;
};

inline constexpr Explained kExitCodes[] = {
    {"0", "success"},
    {"1", "anything that is none of the others, parts of a model that are not supported included"},
    {"2", "the request or the command line is wrong"},
    {"130, 143", "ended by Ctrl-C (SIGINT) and by SIGTERM"},
};

inline constexpr Explained kVariables[] = {
    {"ATTNSMITH_CACHE_DIR",
     "cache directories and bundles, divided by ':'; the first is written to. Without it "
     "XDG_CACHE_HOME/attnsmith "
     "or ~/.cache/attnsmith. Behind the first, http://, https:// and s3:// addresses are remote layers, with "
     "/ : ? # @ percent-encoded in a user and a password"},
    {"ATTNSMITH_CACHE_CA", "a PEM file of the authorities that a remote's certificate may be of"},
    {"ATTNSMITH_CACHE_CERT", "a PEM file: the certificate that remotes are shown"},
    {"ATTNSMITH_CACHE_CERT_KEY", "a PEM file: its key, if it is not in that of the certificate"},
    {"ATTNSMITH_CACHE_HEADERS", "headers that remotes are sent besides, a line each: 'Name: value'"},
    {"ATTNSMITH_CACHE_NETRC", "a netrc file with the passwords of http:// and https:// remotes"},
    {"ATTNSMITH_CACHE_PUSH", "1: programs put what they compile to the remotes, too"},
    {"ATTNSMITH_CACHE_SIGN_KEY",
     "a secret key's PEM file, which signs what `attnsmith cache export`, `cache push` and `prewarm --push` "
     "write"},
    {"ATTNSMITH_CACHE_TOKEN", "a bearer token, which http:// and https:// remotes are sent"},
    {"ATTNSMITH_CACHE_TRUST_KEYS",
     "public keys' PEM files, divided by ':'; with any, only bundles and remotes' kernels that one of them "
     "signed are used"},
    {"ATTNSMITH_CACHE_USER", "'user:password', which http:// and https:// remotes are sent"},
    {"ATTNSMITH_LOG", "what is told on standard error: off, error, warn (the default), info or debug"},
    {"ATTNSMITH_NVRTC_PATH", "the file or the folder of NVRTC, where it is in none of the usual places"},
    {"ATTNSMITH_ON_MISS",
     "what a program does without a kernel in the cache: compile (the default) or error. prewarm "
     "compiles in any case"},
    {"ATTNSMITH_RECORD", "a file to which programs append what they ask for, for prewarm --recorded"},
    {"ATTNSMITH_TUNING", "tuning tables, divided by ':', that planning goes by before its own"},
    {"AWS_ACCESS_KEY_ID", "who asks s3:// remotes; without it and its secret requests are not signed"},
    {"AWS_DEFAULT_REGION", "AWS_REGION, where that is not set"},
    {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3, where that is not set"},
    {"AWS_ENDPOINT_URL_S3", "the address of an S3 server of your own, such as http://minio:9000"},
    {"AWS_REGION", "the region of s3:// remotes; without one your own server is told us-east-1"},
    {"AWS_SECRET_ACCESS_KEY", "the secret of AWS_ACCESS_KEY_ID"},
    {"AWS_SESSION_TOKEN", "the token of credentials that expire"},
    {"COLUMNS, NO_COLOR, CLICOLOR_FORCE", "how wide and how colourful the output is"},
};

}  // namespace attnsmith::cli
