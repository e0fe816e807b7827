// Rows of a table by index, and the gradient of the table.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// out[i] = table[ids[i]]: table is (vocab, d), ids (n), out (n, d). Throws, with position and value, on an id outside
/// [0, vocab).
template <class T>
void embedding_forward(const T* table, const int64_t* ids, T* out, int64_t n, int64_t vocab, int64_t d);

/// dtable[ids[i]] += dy[i], over all i, for dy (n, d). The rows of one id are summed in double in order of i, whatever
/// the number of threads. Throws as the forward does.
template <class T>
void embedding_backward(const T* dy, const int64_t* ids, T* dtable, int64_t n, int64_t vocab, int64_t d);

}  // namespace bg::kernels
