// Ed25519 by libsodium. The functions are declared here as its manual has them: its headers need not be
// there.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>

#include "cache/libraries/shared_library.hpp"
#include "cache/signing/implementations.hpp"
#include "cache/signing/secrets.hpp"

namespace attnsmith::cache {
namespace {

struct SodiumFunctions {
    int (*init)() = nullptr;
    const char* (*version)() = nullptr;
    int (*make_keys)(unsigned char* public_key, unsigned char* secret_key,
                     const unsigned char* seed) = nullptr;
    int (*sign)(unsigned char* signature, unsigned long long* signature_size, const unsigned char* message,
                unsigned long long size, const unsigned char* secret_key) = nullptr;
    int (*verify)(const unsigned char* signature, const unsigned char* message, unsigned long long size,
                  const unsigned char* public_key) = nullptr;

    // Null, or the name of a function that the library lacks.
    const char* find_in(const SharedLibrary& library) {
        const char* missing = nullptr;
        const auto find = [&](auto& function, const char* name) {
            if (!library.find(name, function) && missing == nullptr) missing = name;
        };
        find(init, "sodium_init");
        find(version, "sodium_version_string");
        find(make_keys, "crypto_sign_seed_keypair");
        find(sign, "crypto_sign_detached");
        find(verify, "crypto_sign_verify_detached");
        return missing;
    }
};

// libsodium's secret key is the seed and the public key. It is overwritten when it goes.
struct KeyPair {
    KeyPair() = default;
    KeyPair(const KeyPair&) = delete;
    KeyPair& operator=(const KeyPair&) = delete;

    PublicKey public_key;
    std::array<unsigned char, 64> secret{};
    Overwriting overwriting{secret.data(), secret.size()};
};

class Libsodium final : public Ed25519 {
  public:
    explicit Libsodium(const SodiumFunctions& functions) : functions_(functions) {}

    Result<SecretKey> generate() const override { return random_secret_key(); }

    Result<PublicKey> public_key_of(const SecretKey& key) const override {
        KeyPair pair;
        if (!fill(pair, key)) return failed("work out a public key");
        return pair.public_key;
    }

    Result<Signature> sign(const SecretKey& key, std::span<const std::byte> message) const override {
        KeyPair pair;
        Signature signature;
        if (!fill(pair, key) || functions_.sign(raw(signature.data()), nullptr, raw(message.data()),
                                                message.size(), pair.secret.data()) != 0) {
            return failed("sign");
        }
        return signature;
    }

    Result<bool> verify(const PublicKey& key, std::span<const std::byte> message,
                        const Signature& signature) const override {
        if (is_weak(key)) return false;
        return functions_.verify(raw(signature.data()), raw(message.data()), message.size(),
                                 raw(key.bytes.data())) == 0;
    }

    std::string name() const override { return fmt::format("libsodium {}", functions_.version()); }

  private:
    bool fill(KeyPair& pair, const SecretKey& key) const {
        return functions_.make_keys(raw(pair.public_key.bytes.data()), pair.secret.data(),
                                    raw(key.seed().data())) == 0;
    }

    Status failed(const char* what) const {
        return Status::recoverable_error(EIO, {}, fmt::format("{} could not {}", name(), what));
    }

    const SodiumFunctions functions_;
};

}  // namespace

OpenedEd25519 open_libsodium(std::span<const char* const> names) {
    const Result<SharedLibrary> library = SharedLibrary::open(names);
    if (!library) return library.status();
    const auto refused = [&](std::string why) {
        return Status::recoverable_error(ENOSYS, {}, fmt::format("{}: {}", library->name(), why));
    };
    SodiumFunctions functions;
    if (const char* const missing = functions.find_in(*library)) {
        return refused(fmt::format("it has no {}", missing));
    }
    if (functions.init() < 0) return refused("it cannot be initialised");
    return std::shared_ptr<const Ed25519>(std::make_shared<const Libsodium>(functions));
}

}  // namespace attnsmith::cache
