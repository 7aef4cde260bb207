// attnsmith cache keygen: keys that bundles are signed with.
#include <fmt/format.h>

#include "attnsmith/cache.hpp"
#include "cli/cache/commands.hpp"
#include "cli/program/output.hpp"

namespace attnsmith::cli {
namespace {

int run_keygen(const Command& command) {
    const auto output = command.text("output");
    if (!output) throw BadUsage("--output (-o) is missing: the file that the secret key goes to");
    const SigningKey key = make_signing_key(require_file(*output, "keygen"));
    if (command.has("json")) {
        print_json(to_json(key));
    } else {
        print(fmt::format("key {}\nsecret  {}\npublic  {}\n", key.key_id, printable(key.secret_key_file),
                          printable(key.public_key_file)));
    }
    return kSuccess;
}

}  // namespace

void add_keygen(Command& cache) {
    Command& command = cache.add_command("keygen", "Make a key that bundles and pushes are signed with",
                                         "FILE is the secret key, an Ed25519 key as `openssl genpkey "
                                         "-algorithm ed25519` writes it, which its\n"
                                         "owner alone may read: keep it where bundles are exported. FILE.pub "
                                         "is the public one, for those who\n"
                                         "are to trust the bundles. Neither replaces a file.\n\n"
                                         "Example:\n  attnsmith cache keygen -o release.key");
    command.add_output("FILE", "the secret key; the public one is FILE.pub");
    command.add_switch("json", "print JSON");
    command.on_run(run_keygen);
}

}  // namespace attnsmith::cli
