// What each instruction set provides.
#pragma once
#include "core.h"

namespace blockdraft {
class Team;
}

#define BLOCKDRAFT_FUNCTIONS(isa)                                                                                   \
    namespace isa {                                                                                                 \
    void run(blockdraft::Team& team, const Network& network, const Pass& pass);                                     \
    void extend(blockdraft::Team& team, const Network& network, const Context& context);                            \
    void product(blockdraft::Team& team, const Matrix& matrix, const float* inputs, int num_rows, float* outputs);  \
    void walk(blockdraft::Team& team, const Walk& walk);                                                            \
    }

BLOCKDRAFT_FUNCTIONS(avx512)
BLOCKDRAFT_FUNCTIONS(avxvnni)
BLOCKDRAFT_FUNCTIONS(avx2)
BLOCKDRAFT_FUNCTIONS(neon)
BLOCKDRAFT_FUNCTIONS(portable)
