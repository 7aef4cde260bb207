#include "ops/attention_steps.hpp"
#include "ops/mla/op.hpp"

namespace attnsmith::ops::mla {

constinit const OpTraits kOp = attention_op(kRequest);

}  // namespace attnsmith::ops::mla
