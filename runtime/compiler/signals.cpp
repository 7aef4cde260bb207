#include "compiler/signals.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>

namespace attnsmith::compiler {
namespace {

using Handler = void (*)(int);
using Signal = Handler (*)(int, Handler);

// NVRTC is answered this in place of the handler that it believes to have replaced. It differs from every
// true handler, so what NVRTC gives back tells whether it had taken anything. Never installed.
void left_as_it_was(int) {}

bool is_hosts(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGXFSZ; }

// Where the libraries begin whose imports come here. The return address of a call would not tell which it is:
// the last call of a function may be a jump.
class Libraries {
  public:
    // More than a process has NVRTCs. What there is no room for keeps the signals that it took before.
    void add(const void* within) {
        const void* const base = base_of(within);
        for (std::atomic<const void*>& place : bases_) {
            const void* none = nullptr;
            if (place == base || place.compare_exchange_strong(none, base)) return;
        }
    }

    bool hold(Handler handler) const {
        const void* const base = base_of(reinterpret_cast<const void*>(handler));
        return base != nullptr &&
               std::ranges::any_of(bases_, [&](const auto& place) { return place == base; });
    }

  private:
    static const void* base_of(const void* address) {
        Dl_info info{};
        return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
    }

    std::atomic<const void*> bases_[32] = {};
};

constinit Libraries libraries;

// Whether the handler in force is one of NVRTC's, whose compile began before its calls came here.
bool was_taken(int signal) {
    struct sigaction now {};
    return ::sigaction(signal, nullptr, &now) == 0 && libraries.hold(now.sa_handler);
}

// What NVRTC calls for signal(). It takes a signal by a handler of its own or by SIG_IGN; anything else is a
// handler of the host's that it gives back.
Handler signal_for_nvrtc(int signal, Handler handler) {
    const bool passed_over =
        handler == left_as_it_was || libraries.hold(handler) || (handler == SIG_IGN && !was_taken(signal));
    return is_hosts(signal) && passed_over ? left_as_it_was : ::signal(signal, handler);
}

// The value of an entry in the library's dynamic section, 0 where there is none.
ElfW(Addr) entry_of(const link_map& library, decltype(ElfW(Dyn)::d_tag) tag) {
    for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == tag) return entry->d_un.d_ptr;
    }
    return 0;
}

// glibc makes the addresses in a dynamic section absolute; other loaders leave them as the file has them.
template <typename T>
const T* table_of(const link_map& library, decltype(ElfW(Dyn)::d_tag) tag) {
    const ElfW(Addr) address = entry_of(library, tag);
    return reinterpret_cast<const T*>(address < library.l_addr ? library.l_addr + address : address);
}

struct Pages {
    ElfW(Addr) begin = 0, end = 0;
    bool hold(ElfW(Addr) address) const { return begin <= address && address < end; }
};

ElfW(Addr) page_bytes() { return static_cast<ElfW(Addr)>(::sysconf(_SC_PAGESIZE)); }

// What the loader has made read-only once the imports were bound.
Pages read_only_pages(const link_map& library) {
    struct Search {
        ElfW(Addr) base;
        Pages found;
    } search{library.l_addr, {}};
    const auto look = [](dl_phdr_info* info, std::size_t, void* data) {
        Search& search = *static_cast<Search*>(data);
        if (info->dlpi_addr != search.base) return 0;
        for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
            if (part.p_type != PT_GNU_RELRO) continue;
            const ElfW(Addr) begin = search.base + part.p_vaddr, end = begin + part.p_memsz;
            search.found = {begin - begin % page_bytes(), end - end % page_bytes()};
        }
        return 1;
    };
    ::dl_iterate_phdr(look, &search);
    return search.found;
}

// A write that is not permitted leaves the import as it is.
void redirect(ElfW(Addr) address, const Pages& read_only) {
    Signal& import = *reinterpret_cast<Signal*>(address);
    if (import == signal_for_nvrtc) return;
    void* const page = reinterpret_cast<void*>(address - address % page_bytes());
    const bool is_read_only = read_only.hold(address);
    if (is_read_only && ::mprotect(page, page_bytes(), PROT_READ | PROT_WRITE) != 0) return;
    std::atomic_ref(import).store(signal_for_nvrtc);  // somebody may be calling through it
    if (is_read_only) ::mprotect(page, page_bytes(), PROT_READ);
}

// `relocations` are the words of the library that the loader filled in, with the symbols that they took.
void redirect_all(const link_map& library, std::span<const ElfW(Rela)> relocations, const Pages& read_only) {
    const auto* const symbols = table_of<ElfW(Sym)>(library, DT_SYMTAB);
    const auto* const names = table_of<char>(library, DT_STRTAB);
    for (const ElfW(Rela) & relocation : relocations) {
        const auto symbol = ELF64_R_SYM(relocation.r_info);
        if (symbol != 0 && std::strcmp(names + symbols[symbol].st_name, "signal") == 0)
            redirect(library.l_addr + relocation.r_offset, read_only);
    }
}

std::span<const ElfW(Rela)> relocations_in(const link_map& library, decltype(ElfW(Dyn)::d_tag) table,
                                           decltype(ElfW(Dyn)::d_tag) bytes) {
    return {table_of<ElfW(Rela)>(library, table), entry_of(library, bytes) / sizeof(ElfW(Rela))};
}

// The static library may be part of a plugin that is unloaded before NVRTC is, which never happens to it.
void keep_own_code() {
    Dl_info self{};
    if (::dladdr(reinterpret_cast<const void*>(&signal_for_nvrtc), &self) != 0)
        (void)::dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace

void leave_signals_to_host(void* library) noexcept {
    static std::mutex mutex;  // two threads must not change a page's protection at the same time
    const std::lock_guard lock(mutex);
    link_map* map = nullptr;
    if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return;
    keep_own_code();
    libraries.add(map->l_ld);
    const Pages read_only = read_only_pages(*map);
    if (entry_of(*map, DT_PLTREL) == DT_RELA)
        redirect_all(*map, relocations_in(*map, DT_JMPREL, DT_PLTRELSZ), read_only);
    // The first of these, by far the most, name no symbol.
    const auto others = relocations_in(*map, DT_RELA, DT_RELASZ);
    const std::size_t relative = entry_of(*map, DT_RELACOUNT);
    redirect_all(*map, others.subspan(std::min(relative, others.size())), read_only);
}

}  // namespace attnsmith::compiler
