// What compute_dtype int8 would gain on this machine.
#ifndef QLORA_INT8_GAIN_H_
#define QLORA_INT8_GAIN_H_

namespace qlora {

class Context;

// Times as many products with quantized weights in a second as with compute_dtype auto: forward,
// and of gradients, which int8_backward has in 8 bits.
struct Int8Gain {
  double forward;
  double backward;
};

// Measured: in half a second where vectors are wide, in some seconds by scalar kernels.
Int8Gain MeasureInt8Gain(Context& context);

}  // namespace qlora

#endif  // QLORA_INT8_GAIN_H_
