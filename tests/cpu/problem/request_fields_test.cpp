// The table of fields against the public structs that it speaks of.
#include "problem/request/request_fields.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "expect.hpp"
#include "problem/request/problem.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::refused;
using Names = std::set<std::string>;

namespace {

std::string header(const std::string& name) {
    std::ifstream file(ATTNSMITH_SOURCE_DIR "/runtime/include/attnsmith/" + name);
    REQUIRE(file);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return std::regex_replace(text, std::regex(R"(/\*[^]*?\*/|//[^\n]*)"), "");
}

// The names of a struct's members, each the last word before a comma, a semicolon, or what it is set to.
Names members_of(const std::string& file, const std::string& declaration) {
    const std::string text = header(file);
    const std::size_t begin = text.find(declaration);
    REQUIRE(begin != text.npos);
    const std::string body = text.substr(begin, text.find("\n}", begin) - begin);
    Names names;
    const std::regex member(R"((\w+)\s*(?:=[^;,]*|\{\})?[;,])");
    for (std::sregex_iterator found(body.begin(), body.end(), member), end; found != end; ++found) {
        if ((*found)[1] != "operator") names.insert((*found)[1]);
    }
    names.erase("default");
    return names;
}

template <class Condition>
Names rows(Condition condition) {
    Names names;
    for (const RequestField& field : request_fields())
        if (field.bits != nullptr && condition(field)) names.insert(std::string(field.name));
    return names;
}

bool is_size(const RequestField& field) { return field.role == FieldRole::size; }

// Requests that differ from the default one in that field alone.
std::vector<AttentionRequest> changed(const RequestField& field) {
    std::vector<nlohmann::json> values;
    if (field.words == nullptr) values = {2, 8, true, 0.5};
    if (field.words != nullptr)
        for (const std::string_view word : field.words()) values.emplace_back(word);
    std::vector<AttentionRequest> requests;
    for (const nlohmann::json& value : values) {
        AttentionRequest request;
        try {
            field.set(request, field.name, value);
        } catch (const Error&) {
            continue;  // of another type, or an op that is not built
        }
        if (request != AttentionRequest()) requests.push_back(request);
    }
    REQUIRE(!requests.empty());
    return requests;
}

}  // namespace

TEST_CASE("every member of the public structs has a row, in C++ and in C", "[fields]") {
    CHECK(members_of("spec.hpp", "struct AttentionSpec {") == rows(is_of_spec));
    CHECK(members_of("spec.hpp", "struct PlanSizes {") == rows(is_size));
    Names of_spec = rows(is_of_spec), of_sizes = rows(is_size);
    of_spec.insert({"size", "has_window_left", "has_window_right"});
    of_sizes.insert("size");
    Names in_c = members_of("attnsmith.h", "typedef struct attnsmith_spec {");
    in_c.erase("reserved");
    CHECK(in_c == of_spec);
    CHECK(members_of("attnsmith.h", "typedef struct attnsmith_sizes {") == of_sizes);
}

TEST_CASE("a field alone survives the C structs, and changes the hash", "[fields]") {
    for (const RequestField& field : request_fields()) {
        if (field.bits == nullptr) continue;
        INFO(field.name);
        for (const AttentionRequest& request : changed(field)) {
            CRequest c;
            AttentionRequest again;
            for (const RequestField& each : request_fields())
                if (each.to_c != nullptr) each.to_c(request, c);
            for (const RequestField& each : request_fields())
                if (each.from_c != nullptr) each.from_c(again, each.name, c);
            CHECK(again == request);
            CHECK((hash_of(request.spec) != hash_of(AttentionSpec{})) == is_of_spec(field));
        }
    }
}

TEST_CASE("a zeroed C struct is the defaults", "[fields]") {
    AttentionRequest request;
    for (const RequestField& field : request_fields())
        if (field.from_c != nullptr) field.from_c(request, field.name, CRequest{});
    CHECK(request == AttentionRequest());
}

TEST_CASE("hashes of nothing and of 0 differ, and of the two zeros do not", "[fields]") {
    CHECK(hash_of({.window_left = 0}) != hash_of({}));
    CHECK(hash_of({.window_left = 0}) != hash_of({.window_right = 0}));
    CHECK(hash_of({.softcap = 0.0}) == hash_of({.softcap = -0.0}));
}

TEST_CASE("an enumerator that a cast made is refused in every field of words", "[fields]") {
    Names refusing;
    const auto refusal = [&](auto change) {
        AttentionSpec spec{.head_dim_qk = 64, .q_heads = 8};
        change(spec);
        refusing.insert(refused([&] { validate(spec, {}); }).field());
    };
    refusal([](AttentionSpec& s) { s.op = static_cast<Op>(77); });
    refusal([](AttentionSpec& s) { s.dtype = static_cast<DType>(77); });
    refusal([](AttentionSpec& s) { s.index_dtype = DType::bf16; });
    refusal([](AttentionSpec& s) { s.mask = static_cast<Mask>(77); });
    refusal([](AttentionSpec& s) { s.kv = static_cast<KvStorage>(77); });
    refusal([](AttentionSpec& s) { s.page_order = static_cast<PageOrder>(77); });
    refusal([](AttentionSpec& s) { s.o_dtype = static_cast<DType>(77); });
    refusal([](AttentionSpec& s) { s.kv_dtype = DType::uint8; });
    refusal([](AttentionSpec& s) { s.kv_scale = static_cast<KvScale>(77); });
    refusal([](AttentionSpec& s) { s.precision = static_cast<Precision>(77); });
    refusal([](AttentionSpec& s) { s.consistency = static_cast<Consistency>(77); });
    refusal([](AttentionSpec& s) { s.op = Op::append, s.slots = static_cast<Slots>(77); });
    refusal([](AttentionSpec& s) { s.op = Op::append, s.rope = static_cast<Rope>(77); });
    refusal([](AttentionSpec& s) { s.op = Op::append, s.rope_table = static_cast<RopeTable>(77); });
    refusal([](AttentionSpec& s) { s.op = Op::append, s.q_dtype = DType::uint8; });
    CHECK(refusing == rows([](const RequestField& field) { return field.words != nullptr; }));
}
