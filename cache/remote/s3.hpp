// S3, and servers that speak its language (MinIO, Ceph), as remotes: where an address "s3://bucket/prefix"
// leads, and what an error of S3 says. Internal to cache/.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

// Where buckets are.
struct S3Service {
    std::string region = {};    // "eu-west-1"; empty where `endpoint` is not
    std::string endpoint = {};  // "https://minio.example:9000", of a server of one's own; empty: Amazon's
};

bool is_s3_address(std::string_view text);

// The URL that objects of "s3://bucket/prefix" are below. What follows the bucket is taken as it stands, as
// the AWS CLI takes it: a % or a + is a letter of the key. Amazon's buckets are host names, others' the first
// part of the path, as are Amazon's with a name that no certificate is for. EINVAL, with what is wrong.
Result<std::string> s3_url(std::string_view address, const S3Service& service);

// Empty, or what is wrong with them, without their text.
std::string s3_region_fault(std::string_view region);
std::string s3_endpoint_fault(std::string_view endpoint);

// The code of an error that S3 sends as XML, such as "AccessDenied"; empty for any other page.
std::string s3_error_code(std::span<const std::byte> page);

// What the code means for who asked, where that can be told; else empty.
std::string_view s3_error_meaning(std::string_view code);

}  // namespace attnsmith::cache
