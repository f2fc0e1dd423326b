// What each instruction set provides.
#pragma once
#include "core.h"

namespace blockdraft {
class Team;
}

#define BLOCKDRAFT_FUNCTIONS(isa)                                                                                    \
    namespace isa {                                                                                                  \
    /* Extends contexts, runs rows, walks through blocks: what is not null, in this order, in one parallel region. */\
    void run(blockdraft::Team& team, const Network* network, const Context* context, const Pass* pass,               \
             const Walk* walk);                                                                                      \
    void product(blockdraft::Team& team, const Matrix& matrix, const float* inputs, int num_rows, float* outputs);   \
    }

BLOCKDRAFT_FUNCTIONS(avx512)
BLOCKDRAFT_FUNCTIONS(avxvnni)
BLOCKDRAFT_FUNCTIONS(avx2)
BLOCKDRAFT_FUNCTIONS(neon)
BLOCKDRAFT_FUNCTIONS(portable)
