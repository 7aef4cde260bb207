// Where addresses of S3 lead, and what its errors say.
#include "cache/remote/s3.hpp"

#include <cerrno>

#include "cache/fixture.hpp"
#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;

namespace {

const S3Service kAmazon{.region = "eu-west-1"};
const S3Service kOwnServer{.endpoint = "http://minio:9000/"};

std::string url_of(const char* address, const S3Service& service) {
    const auto url = s3_url(address, service);
    return url ? *url : "refused: " + url.status().message;
}

}  // namespace

TEST_CASE("Amazon's buckets are hosts") {
    CHECK(url_of("s3://bucket/team/kernels", kAmazon) ==
          "https://bucket.s3.eu-west-1.amazonaws.com/team/kernels");
    CHECK(url_of("s3://bucket", kAmazon) == "https://bucket.s3.eu-west-1.amazonaws.com");
    CHECK(url_of("s3://bucket//", kAmazon) == "https://bucket.s3.eu-west-1.amazonaws.com");
    CHECK(url_of("s3://bucket/a/", kAmazon) == "https://bucket.s3.eu-west-1.amazonaws.com/a");
    CHECK(url_of("s3://bucket/a", {.region = "cn-north-1"}) ==
          "https://bucket.s3.cn-north-1.amazonaws.com.cn/a");
    // No certificate is for these.
    for (const char* bucket : {"my.bucket", "My-Bucket", "my_bucket", "bucket-"}) {
        const std::string address = std::string("s3://") + bucket + "/a";
        CHECK(url_of(address.c_str(), kAmazon) ==
              std::string("https://s3.eu-west-1.amazonaws.com/") + bucket + "/a");
    }
}

TEST_CASE("buckets of a server of one's own are the first part of the path") {
    CHECK(url_of("s3://bucket/team/kernels", kOwnServer) == "http://minio:9000/bucket/team/kernels");
    CHECK(url_of("s3://bucket", kOwnServer) == "http://minio:9000/bucket");
    CHECK(url_of("s3://bucket/a", {.region = "eu-west-1", .endpoint = "https://store.example/s3"}) ==
          "https://store.example/s3/bucket/a");
}

TEST_CASE("a prefix is taken letter by letter") {
    CHECK(url_of("s3://bucket/a b+c%20/\xc3\xbc=@:*", kOwnServer) ==
          "http://minio:9000/bucket/a%20b%2Bc%2520/%C3%BC%3D%40%3A%2A");
    CHECK(url_of("s3://bucket/a//b", kOwnServer) == "http://minio:9000/bucket/a//b");
    CHECK(url_of("s3://bucket/.a/b..", kOwnServer) == "http://minio:9000/bucket/.a/b..");
}

TEST_CASE("what is no address of S3 is refused without its text") {
    for (const char* address :
         {"s3://", "s3:///a", "s3://ab", "s3://.hidden/a", "s3://hid den/a", "s3://hidden:9000/a",
          "s3://hidden:word@bucket/a", "s3://bucket/a?hidden", "s3://bucket?hidden", "s3://bucket/a#hidden",
          "s3://bucket/./a", "s3://bucket/hidden/..", "s3://\xc3\xbc\xc3\xbc\xc3\xbc/hidden"}) {
        INFO(address);
        for (const S3Service& service : {kAmazon, kOwnServer}) {
            const auto url = s3_url(address, service);
            REQUIRE_FALSE(url);
            CHECK(url.status().error_number == EINVAL);
            CHECK(url.status().to_string().find("hidden") == std::string::npos);
        }
    }
}

TEST_CASE("regions and endpoints that would make other URLs are faults") {
    for (const char* region : {"us-east-1", "auto", "default", "a_b"}) CHECK(s3_region_fault(region).empty());
    for (const char* region : {"", "us-east-1/", "a.b", "US", "a b"})
        CHECK_FALSE(s3_region_fault(region).empty());
    for (const char* endpoint : {"http://minio", "https://a.example:9000", "https://a.example/s3/"})
        CHECK(s3_endpoint_fault(endpoint).empty());
    for (const char* endpoint :
         {"minio:9000", "ftp://a", "https://", "https://user:hidden@a", "http://a?hidden=1",
          "http://a#hidden", "http://a b", "http://\xc3\xbc.example", "http://a\n", "http:///", "https:///a",
          "http://:9000"}) {
        INFO(endpoint);
        CHECK_FALSE(s3_endpoint_fault(endpoint).empty());
        CHECK(s3_endpoint_fault(endpoint).find("hidden") == std::string::npos);
    }
}

TEST_CASE("the code of an error is found, and nothing else that a page says") {
    const auto code_of = [](std::string_view page) { return s3_error_code(bytes_of(page)); };
    CHECK(code_of("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>x</Message></Error>") ==
          "AccessDenied");
    CHECK(code_of("<Error xmlns=\"urn:x\">\n  <Code>SlowDown</Code>") == "SlowDown");
    for (const char* page : {"", "AccessDenied", "<Code>AccessDenied</Code>", "<Error><Code>AccessDenied",
                             "<Error></Code><Code>", "<Error><Code>\x1b[31mred</Code></Error>",
                             "<Error><Code>a b</Code></Error>"}) {
        INFO(page);
        CHECK(code_of(page).empty());
    }
    CHECK(code_of("<Error><Code>" + std::string(65, 'a') + "</Code></Error>").empty());
    CHECK_FALSE(s3_error_meaning("RequestTimeTooSkewed").empty());
    CHECK(s3_error_meaning("AccessDenied").empty());
    CHECK(s3_error_meaning("").empty());
}
