// A document against one of the JSON schemas of runtime/schemas.
#pragma once

#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include <fstream>
#include <iterator>
#include <string>

namespace attnsmith::test {

// Empty when `document` meets the schema of that file.
inline std::string schema_errors(const std::string& file, const nlohmann::json& document) {
    const std::string path = std::string(ATTNSMITH_SOURCE_DIR) + "/runtime/schemas/" + file;
    std::ifstream in(path);
    const nlohmann::json schema_document =
        nlohmann::json::parse(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    valijson::Schema schema;
    valijson::SchemaParser parser;
    parser.populateSchema(valijson::adapters::NlohmannJsonAdapter(schema_document), schema);
    valijson::Validator validator;
    valijson::ValidationResults results;
    std::string text;
    if (!validator.validate(schema, valijson::adapters::NlohmannJsonAdapter(document), &results)) {
        valijson::ValidationResults::Error error;
        while (results.popError(error)) text += error.description + "; ";
    }
    return text;
}

}  // namespace attnsmith::test
