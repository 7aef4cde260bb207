// Ed25519 by OpenSSL 3's libcrypto. The functions are declared here as its manual has them: its headers need
// not be there.
#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <utility>

#include "cache/libraries/shared_library.hpp"
#include "cache/signing/implementations.hpp"

namespace attnsmith::cache {
namespace {

struct Context;    // OSSL_LIB_CTX
struct Key;        // EVP_PKEY
struct Operation;  // EVP_MD_CTX

constexpr const char* kAlgorithm = "ED25519";
constexpr int kVersionText = 6;                    // OPENSSL_VERSION_STRING
constexpr std::uint64_t kNoExitHandler = 0x80000;  // OPENSSL_INIT_NO_ATEXIT

struct OpenSslFunctions {
    int (*init)(std::uint64_t options, const void* settings) = nullptr;
    const char* (*version)(int which) = nullptr;
    Context* (*new_context)() = nullptr;
    void (*free_context)(Context*) = nullptr;
    Key* (*new_secret_key)(Context*, const char* type, const char* properties, const unsigned char* bytes,
                           std::size_t size) = nullptr;
    Key* (*new_public_key)(Context*, const char* type, const char* properties, const unsigned char* bytes,
                           std::size_t size) = nullptr;
    int (*get_public_key)(const Key*, unsigned char* bytes, std::size_t* size) = nullptr;
    void (*free_key)(Key*) = nullptr;
    Operation* (*new_operation)() = nullptr;
    void (*free_operation)(Operation*) = nullptr;
    int (*begin_sign)(Operation*, void** unused, const char* digest, Context*, const char* properties, Key*,
                      const void* parameters) = nullptr;
    int (*sign)(Operation*, unsigned char* signature, std::size_t* signature_size,
                const unsigned char* message, std::size_t size) = nullptr;
    int (*begin_verify)(Operation*, void** unused, const char* digest, Context*, const char* properties, Key*,
                        const void* parameters) = nullptr;
    int (*verify)(Operation*, const unsigned char* signature, std::size_t signature_size,
                  const unsigned char* message, std::size_t size) = nullptr;
    int (*set_mark)() = nullptr;
    int (*pop_to_mark)() = nullptr;

    // Null, or the name of a function that the library lacks.
    const char* find_in(const SharedLibrary& library) {
        const char* missing = nullptr;
        const auto find = [&](auto& function, const char* name) {
            if (!library.find(name, function) && missing == nullptr) missing = name;
        };
        find(init, "OPENSSL_init_crypto");
        find(version, "OpenSSL_version");
        find(new_context, "OSSL_LIB_CTX_new");
        find(free_context, "OSSL_LIB_CTX_free");
        find(new_secret_key, "EVP_PKEY_new_raw_private_key_ex");
        find(new_public_key, "EVP_PKEY_new_raw_public_key_ex");
        find(get_public_key, "EVP_PKEY_get_raw_public_key");
        find(free_key, "EVP_PKEY_free");
        find(new_operation, "EVP_MD_CTX_new");
        find(free_operation, "EVP_MD_CTX_free");
        find(begin_sign, "EVP_DigestSignInit_ex");
        find(sign, "EVP_DigestSign");
        find(begin_verify, "EVP_DigestVerifyInit_ex");
        find(verify, "EVP_DigestVerify");
        find(set_mark, "ERR_set_mark");
        find(pop_to_mark, "ERR_pop_to_mark");
        return missing;
    }
};

// The errors of a thread are one list, which the program may share: what is put there meanwhile is taken away
// again, and nothing else.
class ErrorsKept {
  public:
    explicit ErrorsKept(const OpenSslFunctions& functions) : functions_(functions) { functions_.set_mark(); }
    ErrorsKept(const ErrorsKept&) = delete;
    ErrorsKept& operator=(const ErrorsKept&) = delete;
    ~ErrorsKept() { functions_.pop_to_mark(); }

  private:
    const OpenSslFunctions& functions_;
};

class OpenSsl final : public Ed25519 {
  public:
    OpenSsl(const OpenSslFunctions& functions, Context* context) : functions_(functions), context_(context) {}
    OpenSsl(const OpenSsl&) = delete;
    OpenSsl& operator=(const OpenSsl&) = delete;
    ~OpenSsl() override { functions_.free_context(context_); }

    Result<SecretKey> generate() const override { return random_secret_key(); }

    Result<PublicKey> public_key_of(const SecretKey& key) const override {
        const ErrorsKept kept(functions_);
        const KeyPointer secret = secret_key(key);
        PublicKey found;
        std::size_t size = found.bytes.size();
        if (secret == nullptr ||
            functions_.get_public_key(secret.get(), raw(found.bytes.data()), &size) != 1 ||
            size != found.bytes.size()) {
            return failed("work out a public key");
        }
        return found;
    }

    Result<Signature> sign(const SecretKey& key, std::span<const std::byte> message) const override {
        const ErrorsKept kept(functions_);
        const KeyPointer secret = secret_key(key);
        const OperationPointer operation(functions_.new_operation(), functions_.free_operation);
        Signature signature;
        std::size_t size = signature.size();
        if (secret == nullptr || operation == nullptr ||
            functions_.begin_sign(operation.get(), nullptr, nullptr, context_, nullptr, secret.get(),
                                  nullptr) != 1 ||
            functions_.sign(operation.get(), raw(signature.data()), &size, raw(message.data()),
                            message.size()) != 1 ||
            size != signature.size()) {
            return failed("sign");
        }
        return signature;
    }

    Result<bool> verify(const PublicKey& key, std::span<const std::byte> message,
                        const Signature& signature) const override {
        if (is_weak(key)) return false;
        const ErrorsKept kept(functions_);
        const KeyPointer known(
            functions_.new_public_key(context_, kAlgorithm, nullptr, raw(key.bytes.data()), key.bytes.size()),
            functions_.free_key);
        const OperationPointer operation(functions_.new_operation(), functions_.free_operation);
        if (known == nullptr || operation == nullptr ||
            functions_.begin_verify(operation.get(), nullptr, nullptr, context_, nullptr, known.get(),
                                    nullptr) != 1) {
            return failed("begin to verify a signature");
        }
        return functions_.verify(operation.get(), raw(signature.data()), signature.size(),
                                 raw(message.data()), message.size()) == 1;
    }

    std::string name() const override {
        const char* const version = functions_.version(kVersionText);
        return fmt::format("OpenSSL {}", version == nullptr ? "3" : version);
    }

  private:
    using KeyPointer = std::unique_ptr<Key, void (*)(Key*)>;
    using OperationPointer = std::unique_ptr<Operation, void (*)(Operation*)>;

    // OpenSSL overwrites its copy when it is freed.
    KeyPointer secret_key(const SecretKey& key) const {
        return {functions_.new_secret_key(context_, kAlgorithm, nullptr, raw(key.seed().data()),
                                          key.seed().size()),
                functions_.free_key};
    }

    Status failed(const char* what) const {
        return Status::recoverable_error(EIO, {}, fmt::format("{} could not {}", name(), what));
    }

    const OpenSslFunctions functions_;
    Context* const context_;
};

}  // namespace

OpenedEd25519 open_openssl(std::span<const char* const> names) {
    const Result<SharedLibrary> library = SharedLibrary::open(names);
    if (!library) return library.status();
    const auto refused = [&](std::string why) {
        return Status::recoverable_error(ENOSYS, {}, fmt::format("{}: {}", library->name(), why));
    };
    OpenSslFunctions functions;
    if (const char* const missing = functions.find_in(*library)) {
        return refused(fmt::format("it has no {}", missing));
    }
    // No handler at exit, where threads may still be verifying; without effect where the program has OpenSSL
    // running.
    if (functions.init(kNoExitHandler, nullptr) != 1) return refused("it cannot be initialised");
    // A context of our own: what the program or openssl.cnf set for the default one is not ours.
    Context* const context = functions.new_context();
    if (context == nullptr) return refused("it cannot make a context");
    return std::shared_ptr<const Ed25519>(std::make_shared<const OpenSsl>(functions, context));
}

}  // namespace attnsmith::cache
