// Asks NVIDIA's cuDNN, where it is installed, how it would run a graph on the simulated card: which engines it would
// choose, best first, and the workspace that each wants. Since 9.8 cuDNN plans without a device, for one whose
// properties it is given ("deviceless ahead-of-time compilation"). Nothing else is asked of it, and it runs nothing.
//
// CUDASIM_WORKSPACE_CUDNN_LIBRARY is its libcudnn_graph.so.9. Without that, or with a workspace that is set, nothing is asked.
#pragma once

#include "standins/cudnn/backend.hpp"

namespace standins::cudnn {

// To be called before a descriptor becomes final. Where cuDNN has an answer, a heuristic gets its configurations and a
// plan its workspace, as attributes. kNotSupported if cuDNN has no plan for a configuration of its own; otherwise 0.
int ask_planner(Contents& contents);

}  // namespace standins::cudnn
