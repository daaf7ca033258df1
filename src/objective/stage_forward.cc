#include "objective/stage_forward.h"

#include "dist/together.h"

namespace qlora {

void ForwardStage(Communicator& communicator, const RankPlace& place, const Decoder& decoder,
                  const PassInputs& inputs, Activations& activations) {
  Memory& memory = decoder.backend().memory();
  const MatrixView& first = activations.layers[decoder.config().layers_here().begin].x_in;
  if (!place.is_first_stage()) {
    SendAndReceive(communicator, memory, -1, {}, place.rank - 1, BytesIn(first));
  }
  Forward(decoder, inputs, activations);
  if (!place.is_last_stage()) {
    SendAndReceive(communicator, memory, place.rank + 1, BytesIn(activations.x_out), -1, {});
  }
}

}  // namespace qlora
