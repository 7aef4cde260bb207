#include "ops/attention/op.hpp"
#include "ops/attention_steps.hpp"

namespace attnsmith::ops::attention {

constinit const OpTraits kOp = attention_op(kRequest);

}  // namespace attnsmith::ops::attention
