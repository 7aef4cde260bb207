// Signatures and keys: against RFC 8032's vectors, by each library that is there, and against what OpenSSL's
// command writes and reads.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cache/libraries/shared_library.hpp"
#include "cache/signing/base64.hpp"
#include "cache/signing/implementations.hpp"
#include "cache/signing/key_file.hpp"
#include "cache/signing/key_text.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;
namespace fs = std::filesystem;

std::vector<std::byte> from_hex(std::string_view digits) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < digits.size(); i += 2)
        bytes.push_back(static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
    return bytes;
}

template <std::size_t N>
std::array<std::byte, N> array_from_hex(std::string_view digits) {
    const std::vector<std::byte> bytes = from_hex(digits);
    std::array<std::byte, N> array{};
    if (bytes.size() != N) throw std::runtime_error("not of this length");
    std::ranges::copy(bytes, array.begin());
    return array;
}

SecretKey secret_from_hex(std::string_view digits) { return SecretKey(array_from_hex<32>(digits)); }
PublicKey public_from_hex(std::string_view digits) { return {array_from_hex<32>(digits)}; }

bool same_seed(const SecretKey& a, const SecretKey& b) { return std::ranges::equal(a.seed(), b.seed()); }

// RFC 8032, 7.1.
struct Vector {
    const char *secret, *known, *message, *signature;
};
constexpr Vector kVectors[] = {{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
                                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a3"
                                "3bacc61e39701cf9b46bd25bf5f0"
                                "595bbe24655141438e7a100b"},
                               {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
                                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15"
                                "996e458f3613d0f11d8c387b2eae"
                                "b4302aeeb00d291612bb0c00"},
                               {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
                                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16"
                                "f290ae67f760984dc6594a7c15e9"
                                "716ed28dc027beceea1ec40a"},
                               {"833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
                                "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
                                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274f"
                                "c1a836ba3c23a3feebbd454d4423"
                                "643ce80e2a9ac94fa54ca49f",
                                "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90"
                                "b3ecfdfbc7c66431e0303dca179c"
                                "138ac17ad9bef1177331a704"}};

// Both libraries, as far as they are there; what is not is told by name.
std::vector<std::shared_ptr<const Ed25519>> libraries() {
    std::vector<std::shared_ptr<const Ed25519>> opened;
    for (const OpenedEd25519& one : {open_openssl(), open_libsodium()}) {
        if (one)
            opened.push_back(*one);
        else
            WARN("SKIPPED: " << one.status().message);
    }
    return opened;
}

constexpr std::array kNone = {"libattnsmith-has-no-such-library.so.1", "/nowhere/lib.so"};

bool verifies(const Ed25519& ed25519, const PublicKey& key, std::span<const std::byte> message,
              const Signature& signature) {
    const Result<bool> verified = ed25519.verify(key, message, signature);
    REQUIRE(verified.ok());
    return *verified;
}

// Whether a command of the system's can be run, with its output left away.
bool run_shell(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

bool has_openssl_command() {
    const bool has = run_shell("openssl genpkey -algorithm ed25519");
    if (!has) WARN("SKIPPED: there is no openssl command that knows Ed25519");
    return has;
}

std::string refusal_of_secret(std::string_view text) {
    const Result<SecretKey> key = parse_secret_key(text);
    if (key) return "taken";
    CHECK(key.status().error_number == EINVAL);
    return key.status().message;
}

std::string refusal_of_public(std::string_view text) {
    const Result<PublicKey> key = parse_public_key(text);
    if (key) return "taken";
    CHECK(key.status().error_number == EINVAL);
    return key.status().message;
}

std::string pem(std::string_view label, std::span<const std::byte> der) {
    std::string text = "-----BEGIN " + std::string(label) + "-----\n";
    append_base64(der, text);
    return text + "\n-----END " + std::string(label) + "-----\n";
}

unsigned mode_of(const std::string& file) {
    struct ::stat info;
    REQUIRE(::stat(file.c_str(), &info) == 0);
    return info.st_mode & 07777;
}

const SecretKey kSecret = secret_from_hex(kVectors[0].secret);
const PublicKey kPublic = public_from_hex(kVectors[0].known);

bool says(const std::string& text, std::initializer_list<std::string_view> parts) {
    UNSCOPED_INFO(text);
    return std::ranges::all_of(parts, [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

TEST_CASE("signatures are those of RFC 8032, by each library", "[signing]") {
    for (const auto& library : libraries()) {
        INFO(library->name());
        for (const Vector& vector : kVectors) {
            const SecretKey secret = secret_from_hex(vector.secret);
            const PublicKey known = public_from_hex(vector.known);
            const std::vector<std::byte> message = from_hex(vector.message);
            const Signature signature = array_from_hex<64>(vector.signature);
            CHECK(library->public_key_of(secret).value() == known);
            CHECK(library->sign(secret, message).value() == signature);
            CHECK(verifies(*library, known, message, signature));
        }
    }
}

TEST_CASE("a signature holds for its message, key and bytes alone", "[signing]") {
    const Vector& vector = kVectors[3];
    for (const auto& library : libraries()) {
        INFO(library->name());
        PublicKey known = public_from_hex(vector.known);
        std::vector<std::byte> message = from_hex(vector.message);
        Signature signature = array_from_hex<64>(vector.signature);
        const auto check_each_bit = [&](std::span<std::byte> bytes) {
            for (std::byte& byte : bytes) {
                for (int bit = 0; bit < 8; ++bit) {
                    byte ^= static_cast<std::byte>(1 << bit);
                    CHECK_FALSE(verifies(*library, known, message, signature));
                    byte ^= static_cast<std::byte>(1 << bit);
                }
            }
        };
        check_each_bit(signature);
        check_each_bit(message);
        check_each_bit(known.bytes);
        CHECK_FALSE(verifies(*library, known, std::span(message).first(message.size() - 1), signature));
        CHECK(verifies(*library, known, message, signature));
    }
}

TEST_CASE("a signature is refused whose S is not the least", "[signing]") {
    // The group's order, little-endian: S + L verifies for who does not look.
    const std::vector<std::byte> order =
        from_hex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
    for (const auto& library : libraries()) {
        INFO(library->name());
        Signature signature = array_from_hex<64>(kVectors[0].signature);
        unsigned carry = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            carry += std::to_integer<unsigned>(signature[32 + i]) + std::to_integer<unsigned>(order[i]);
            signature[32 + i] = static_cast<std::byte>(carry);
            carry >>= 8;
        }
        CHECK_FALSE(verifies(*library, kPublic, {}, signature));
    }
}

TEST_CASE("keys that anybody can sign for are none", "[signing]") {
    const std::string zeros(64, '0');
    for (const auto& library : libraries()) {
        INFO(library->name());
        // R the neutral point and S zero: the equation holds of the neutral point as the key.
        const Signature forged = array_from_hex<64>("01" + zeros + std::string(62, '0'));
        for (const std::string& key :
             {zeros, "01" + std::string(62, '0'), "01" + std::string(60, '0') + "80",
              "ec" + std::string(60, 'f') + "7f", "ee" + std::string(60, 'f') + "ff",
              std::string("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85")}) {
            const PublicKey weak = public_from_hex(key);
            CHECK(is_weak(weak));
            CHECK_FALSE(verifies(*library, weak, {}, forged));
            CHECK(says(refusal_of_public(encode(weak)), {"anybody can sign"}));
        }
        CHECK_FALSE(is_weak(kPublic));
        // These bytes are no point of the curve at all, so no key.
        CHECK_FALSE(verifies(*library, public_from_hex("02" + std::string(62, '0')), {}, forged));
    }
}

TEST_CASE("what one library signs the other verifies, with keys of its own", "[signing]") {
    for (const auto& signer : libraries()) {
        const SecretKey secret = signer->generate().value();
        CHECK_FALSE(same_seed(secret, signer->generate().value()));
        const std::vector<std::byte> message = bytes_of(std::string(100'000, 'm'));
        const Signature signature = signer->sign(secret, message).value();
        for (const auto& verifier : libraries()) {
            CHECK(verifier->public_key_of(secret).value() == signer->public_key_of(secret).value());
            CHECK(verifies(*verifier, signer->public_key_of(secret).value(), message, signature));
        }
    }
}

TEST_CASE("the first library that can be used is", "[signing]") {
    const OpenedEd25519 openssl = open_openssl(), libsodium = open_libsodium();
    if (openssl) CHECK(open_ed25519().value()->name() == (*openssl)->name());
    if (openssl) CHECK((*openssl)->name().starts_with("OpenSSL 3."));
    if (libsodium) CHECK(open_ed25519(kNone).value()->name() == (*libsodium)->name());
    if (libsodium) CHECK((*libsodium)->name().starts_with("libsodium 1."));
    if (openssl || libsodium) CHECK(ed25519().value() == ed25519().value());
}

TEST_CASE("without a library it is said what to install", "[signing]") {
    const OpenedEd25519 none = open_ed25519(kNone, kNone);
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().error_number == ENOSYS);
    CHECK(none.status().recoverable());
    CHECK(says(none.status().message, {"OpenSSL 3 or libsodium", "install", "/nowhere/lib.so"}));
}

TEST_CASE("a library that is none is refused, and a FIFO is not waited for", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string fifo = temporary / "libcrypto.so.3", text = temporary / "text.so";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    write_text(text, "no library");
    const std::array names = {fifo.c_str(), text.c_str()};
    CHECK(says(open_openssl(names).status().message, {"not a regular file", "text.so"}));
    // One that has none of the functions.
    constexpr std::array kOther = {"libc.so.6"};
    CHECK(says(open_openssl(kOther).status().message, {"libc.so.6: it has no OPENSSL_init_crypto"}));
    CHECK(says(open_libsodium(kOther).status().message, {"libc.so.6: it has no sodium_init"}));
    CHECK(open_openssl(kOther).status().error_number == ENOSYS);
}

TEST_CASE("the program's own OpenSSL errors stay as they are", "[signing]") {
    const OpenedEd25519 openssl = open_openssl();
    const Result<SharedLibrary> library = SharedLibrary::open(kOpenSslNames);
    if (!openssl || !library) {
        WARN("SKIPPED: " << openssl.status().message);
        return;
    }
    void (*begin_error)() = nullptr;
    void (*set_error)(int, int, const char*, ...) = nullptr;
    unsigned long (*take_error)() = nullptr;
    REQUIRE(library->find("ERR_new", begin_error));
    REQUIRE(library->find("ERR_set_error", set_error));
    REQUIRE(library->find("ERR_get_error", take_error));
    for (const bool has_one : {false, true}) {
        while (take_error() != 0) {
        }
        if (has_one) begin_error(), set_error(6, 100, nullptr);
        CHECK_FALSE(verifies(**openssl, kPublic, {}, Signature{}));
        CHECK_FALSE(verifies(**openssl, public_from_hex("02" + std::string(62, '0')), {}, Signature{}));
        CHECK((take_error() != 0) == has_one);
        CHECK(take_error() == 0);
    }
}

TEST_CASE("threads may be the first, and share the library", "[signing]") {
    const Result<const Ed25519*> library = ed25519();
    if (!library) return;
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            const Result<Signature> signature = (*library)->sign(kSecret, {});
            const Result<bool> verified = (*library)->verify(kPublic, {}, *signature);
            right += verified && *verified;
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 8);
    ChildProcess child([&] { return (*library)->sign(kSecret, {}).ok() ? 0 : 1; });
    CHECK(child.wait() == 0);
}

TEST_CASE("a key's id is the beginning of its SHA-256", "[signing]") {
    CHECK(kPublic.id() == "21fe31dfa154a261");
    CHECK(PublicKey().id() == "66687aadf862bd77");
}

TEST_CASE("base64 has one text for each bytes", "[signing]") {
    for (const auto& [text, expected] :
         std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"\xff\xfe\xfd\xfc", "//79/A=="}}) {
        std::string encoded;
        append_base64(bytes_of(text), encoded);
        CHECK(encoded == expected);
        std::array<std::byte, 8> decoded{};
        const auto size = decode_base64(encoded, decoded);
        REQUIRE(size == text.size());
        CHECK(std::ranges::equal(std::span(decoded).first(*size), bytes_of(text)));
    }
    std::array<std::byte, 4> room{};
    for (const char* wrong : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Z===", "=Zg=", "Zg==Zg==", "Zm 9",
                              "Zm9-", "Zm9_", "Zm9vYmFy"}) {
        CHECK_FALSE(decode_base64(wrong, room).has_value());
    }
}

TEST_CASE("keys are the PEM that OpenSSL writes", "[signing]") {
    CHECK(encode(kSecret) ==
          "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
          "-----END PRIVATE KEY-----\n");
    CHECK(same_seed(parse_secret_key(encode(kSecret)).value(), kSecret));
    CHECK(parse_public_key(encode(kPublic)).value() == kPublic);
    // Blanks around it, and lines broken elsewhere or ended otherwise, as by who pastes them.
    std::string pasted = "\n \t" + encode(kPublic) + "\r\n\n";
    pasted.insert(pasted.find("MCow") + 10, "\r\n");
    CHECK(parse_public_key(pasted).value() == kPublic);
    CHECK(parse_public_key(encode(kPublic).substr(0, encode(kPublic).size() - 1)).value() == kPublic);

    if (!has_openssl_command()) return;
    const TemporaryDirectory temporary;
    const std::string secret = temporary / "secret", known = temporary / "public",
                      again = temporary / "again";
    REQUIRE(run_shell("openssl genpkey -algorithm ed25519 -out " + secret));
    REQUIRE(run_shell("openssl pkey -in " + secret + " -pubout -out " + known));
    const SecretKey made = parse_secret_key(read_text(secret)).value();
    CHECK(encode(made) == read_text(secret));
    CHECK(encode(parse_public_key(read_text(known)).value()) == read_text(known));
    for (const auto& library : libraries())
        CHECK(encode(library->public_key_of(made).value()) == read_text(known));
    write_text(secret, encode(kSecret));
    REQUIRE(run_shell("openssl pkey -in " + secret + " -pubout -out " + again));
    CHECK(read_text(again) == encode(kPublic));
}

TEST_CASE("what is no key is called what it is", "[signing]") {
    const std::string secret = encode(kSecret), known = encode(kPublic);
    CHECK(
        says(refusal_of_secret(known), {"this is the public key; the secret one is the file without .pub"}));
    CHECK(says(refusal_of_public(secret), {"the secret key; the public one is the file with .pub"}));
    for (const std::string& text : {std::string(), std::string(" \n\t\r\n")}) {
        CHECK(says(refusal_of_secret(text), {"empty"}));
        CHECK(says(refusal_of_public(text), {"empty"}));
    }
    for (const std::string& garbage : {std::string("garbage"), std::string(1000, '-'), std::string(20, '\0'),
                                       std::string("-----BEGIN"), std::string("0123")}) {
        CHECK(says(refusal_of_secret(garbage), {"no PEM file"}));
    }
    CHECK(says(refusal_of_secret("-----BEGIN PRIVATE KEY"), {"first line does not end"}));
    CHECK(says(refusal_of_secret("-----BEGIN PRIVATE\nKEY-----"), {"first line does not end"}));
    CHECK(says(refusal_of_public("ssh-ed25519 AAAA someone"), {"OpenSSH"}));
    const std::vector<std::byte> der = from_hex("302e020100300506032b657004220420" + std::string(64, '7'));
    CHECK(says(refusal_of_secret(std::string_view(reinterpret_cast<const char*>(der.data()), der.size())),
               {"DER, not PEM"}));
    CHECK(says(refusal_of_secret(secret + secret), {"several keys"}));
    CHECK(says(refusal_of_secret(secret + known), {"several keys"}));
    CHECK(says(refusal_of_secret("x" + secret), {"something else before it"}));
    CHECK(says(refusal_of_secret(secret + "x"), {"something else behind it"}));
    CHECK(says(refusal_of_secret(secret + std::string(kMaxKeyBytes, ' ')), {"far too long"}));
    for (const char* label : {"RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY",
                              "OPENSSH PRIVATE KEY", "CERTIFICATE"}) {
        CHECK(says(refusal_of_secret(pem(label, der)), {"this is a"}));
        CHECK_FALSE(says(refusal_of_secret(pem(label, der)), {"another kind"}));
    }
    CHECK(says(refusal_of_secret(pem("SOMETHING", der)), {"another kind"}));
    CHECK(
        says(refusal_of_secret("-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAAAA\n"
                               "-----END PRIVATE KEY-----\n"),
             {"an encrypted key"}));
}

TEST_CASE("a key that is cut or changed anywhere is refused or another key", "[signing]") {
    for (const std::string& whole : {encode(kSecret), encode(kPublic)}) {
        for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
            CHECK(refusal_of_secret(whole.substr(0, size)) != "taken");
            CHECK(refusal_of_public(whole.substr(0, size)) != "taken");
        }
        for (std::size_t at = 0; at < whole.size(); ++at) {
            for (const char other : {'\0', '\n', '=', '-', 'A', '\x80'}) {
                std::string changed = whole;
                changed[at] = other;
                // What is taken is written so again, blanks apart.
                std::string again;
                if (const auto key = parse_secret_key(changed)) again = encode(*key);
                if (const auto key = parse_public_key(changed)) again = encode(*key);
                if (again.empty()) continue;
                std::erase(changed, '\n'), std::erase(again, '\n');
                CHECK(again == changed);
            }
        }
    }
}

TEST_CASE("keys of other algorithms are named", "[signing]") {
    if (!has_openssl_command()) return;
    const TemporaryDirectory temporary;
    const std::string secret = temporary / "secret", known = temporary / "public";
    struct Other {
        const char *command, *name;
    };
    for (const Other& other :
         {Other{"genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:1024", "an RSA key"},
          Other{"genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256", "an EC key"},
          Other{"genpkey -algorithm x25519", "X25519"}, Other{"genpkey -algorithm ed448", "Ed448"}}) {
        INFO(other.command);
        REQUIRE(run_shell(std::string("openssl ") + other.command + " -out " + secret));
        REQUIRE(run_shell("openssl pkey -in " + secret + " -pubout -out " + known));
        CHECK(says(refusal_of_secret(read_text(secret)), {other.name}));
        CHECK(says(refusal_of_public(read_text(known)), {other.name}));
    }
    REQUIRE(run_shell("openssl genpkey -algorithm ed25519 -aes256 -pass pass:word -out " + secret));
    CHECK(says(refusal_of_secret(read_text(secret)), {"an encrypted key"}));
    // With the public key beside it, as RFC 8410 allows.
    const std::vector<std::byte> with_public =
        from_hex("3051020101300506032b657004220420" + std::string(64, '7') + "812100" + std::string(64, '7'));
    CHECK(says(refusal_of_secret(pem("PRIVATE KEY", with_public)), {"in another form"}));
}

TEST_CASE("new keys are two files that only their owner may read, and everybody", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "key";
    const PublicKey made = write_new_keys(file).value();
    CHECK(mode_of(file) == 0600);
    CHECK(mode_of(file + ".pub") == 0644);
    CHECK(count_files(temporary.path()) == 2);
    CHECK(read_public_key(file + ".pub").value() == made);
    const SecretKey secret = read_secret_key(file).value();
    CHECK(ed25519().value()->public_key_of(secret).value() == made);
}

TEST_CASE("the umask takes from a public key's mode, and gives nothing to a secret one's", "[signing]") {
    const TemporaryDirectory temporary;
    for (const auto& [mask, expected] : std::vector<std::pair<mode_t, unsigned>>{
             {000, 0644}, {002, 0644}, {022, 0644}, {027, 0640}, {077, 0600}, {0277, 0400}}) {
        const std::string file = temporary / std::to_string(mask);
        const mode_t before = ::umask(mask);
        const Result<PublicKey> made = write_new_keys(file);
        ::umask(before);
        REQUIRE(made.ok());
        CHECK(mode_of(file) == 0600);
        CHECK(mode_of(file + ".pub") == expected);
    }
    CHECK(count_files(temporary.path()) == 12);
}

TEST_CASE("new keys replace nothing", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "key";
    for (const std::string& there : {file, file + ".pub"}) {
        for (const bool is_link : {false, true}) {
            if (is_link)
                fs::create_symlink("nowhere", there);
            else
                write_text(there, "mine");
            const Status status = write_new_keys(file).status();
            CHECK(status.error_number == EEXIST);
            CHECK(status.path == there);
            CHECK(says(status.message, {"replace nothing", "another file"}));
            if (!is_link) CHECK(read_text(there) == "mine");
            CHECK(std::distance(fs::directory_iterator(temporary.path()), {}) == 1);
            fs::remove(there);
        }
    }
    CHECK(write_new_keys(temporary / "a/b/key").status().error_number == ENOENT);
    CHECK(write_new_keys(temporary / "").status().error_number == EISDIR);
    CHECK(write_new_keys("").status().error_number == EISDIR);
    CHECK(says(write_new_keys(file + ".pub").status().message, {"without .pub"}));
    CHECK(count_files(temporary.path()) == 0);
}

TEST_CASE("new keys are both there or neither, whatever fails", "[signing]") {
    const Result<const Ed25519*> library = ed25519();
    REQUIRE(library.ok());
    FaultyFileSystem files;
    std::size_t operations = 0;
    {
        const TemporaryDirectory temporary;
        REQUIRE(write_new_keys(files, **library, temporary / "key").ok());
        operations = files.count_all();
        CHECK(files.count(Operation::file_sync) == 2);
        CHECK(files.count(Operation::sync_directory) == 1);
    }
    for (std::size_t n = 0; n < operations; ++n) {
        const TemporaryDirectory temporary;
        files.fail_once_at(n, ENOSPC);
        const Result<PublicKey> made = write_new_keys(files, **library, temporary / "key");
        files.heal();
        // Some only look for what dead processes left.
        CHECK(count_files(temporary.path()) == (made ? 2u : 0u));
    }
}

TEST_CASE("a race for the names of new keys has one winner", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "key";
    std::vector<std::thread> threads;
    std::atomic<int> made{0}, refused{0};
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            const Result<PublicKey> mine = write_new_keys(file);
            ++(mine ? made : refused);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(made == 1);
    CHECK(made + refused == 8);
    CHECK(count_files(temporary.path()) == 2);
    CHECK(ed25519().value()->public_key_of(read_secret_key(file).value()).value() ==
          read_public_key(file + ".pub").value());
}

TEST_CASE("a secret key that others may read is refused", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "key";
    write_text(file, encode(kSecret));
    for (const mode_t mode : {0644, 0640, 0604, 0620, 0601, 0660}) {
        REQUIRE(::chmod(file.c_str(), mode) == 0);
        const Status status = read_secret_key(file).status();
        CHECK(status.error_number == EPERM);
        CHECK(status.path == file);
        CHECK(says(status.message, {"chmod 600 " + file}));
        CHECK_FALSE(says(status.message, {"BEGIN"}));
    }
    for (const mode_t mode : {0600, 0400}) {
        REQUIRE(::chmod(file.c_str(), mode) == 0);
        CHECK(same_seed(read_secret_key(file).value(), kSecret));
    }
    // Through a link it is the file that counts.
    fs::create_symlink("key", temporary / "link");
    CHECK(read_secret_key(temporary / "link").ok());
}

TEST_CASE("what is no key file is refused, and not waited for", "[signing]") {
    const TemporaryDirectory temporary;
    const std::string fifo = temporary / "fifo", large = temporary / "large", none = temporary / "none";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    write_text(large, encode(kSecret) + std::string(kMaxKeyBytes, '\n'));
    REQUIRE(::chmod(large.c_str(), 0600) == 0);
    for (const std::string& file : {fifo, temporary.path().string(), std::string("/dev/zero")}) {
        CHECK(read_secret_key(file).status().error_number == EINVAL);
        CHECK(says(read_public_key(file).status().message, {"not a regular file"}));
    }
    CHECK(says(read_secret_key(large).status().to_string(), {"over 65536 bytes", large}));
    CHECK(says(read_public_key(large).status().to_string(), {"over 65536 bytes"}));
    CHECK(read_secret_key(none).status().error_number == ENOENT);
    CHECK(says(read_public_key("").status().message, {"cannot open"}));
    write_text(none, "no key");
    CHECK(says(read_public_key(none).status().to_string(), {"no PEM file: " + none}));
}

}  // namespace attnsmith::cache
