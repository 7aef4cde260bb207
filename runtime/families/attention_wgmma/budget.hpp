// What a wgmma kernel takes of an SM, and whether an SM has it.
#pragma once

#include "families/attention_wgmma/kernel.hpp"
#include "families/fitting.hpp"

namespace attnsmith::families::attention_wgmma {

// Of a thread, in steps of eight: setmaxnreg gives them to each role. Together no more than what the CTA was
// launched with: the consumers would wait for the rest for ever. 0 of a role that the kernel does not have.
//
// With one CTA an SM:
//
//   warpgroups that multiply            at launch   producer   consumer        scores   dequantizer
//   1, and one that dequantizes         168         56         240                      80
//   2                                   168         40         232
//   2, and one that dequantizes         128         40         208                      56
//   3                                   128         32         160
//   3, with absolute cuts               128         40         152
//   3, wide                             128         56         176 (half of O) 104
//   3, latents dequantized in place     128         72         168 (half of O) 104
struct RoleRegisters {
    int producer = 0, consumer = 0, scores = 0, dequantizer = 0;
};

// Of so many CTAs an SM.
RoleRegisters registers_by_role(const Kernel& kernel, int ctas);

struct RoleBudget {
    Budget budget{};
    RoleRegisters registers{};
};

// A pure function of what the spec and the tile decide: constants that state resources are not looked at.
RoleBudget budget_of(Kernel kernel, const SmTraits& sm);

// Registers that a thread of a consumer warpgroup is expected to need.
int registers_of(const Kernel& kernel);

}  // namespace attnsmith::families::attention_wgmma
