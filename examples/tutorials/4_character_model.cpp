// Tutorial 4: a transformer learns to write, character by character. Without a path it learns a small made-up language;
// give it any text file to learn that.
//
//   4_character_model [TEXT-FILE [STEPS]]
#include <cstdio>
#include <cstdlib>

#include "models/batches.h"
#include "models/builtin_text.h"
#include "models/corpus.h"
#include "models/generate.h"
#include "models/transformer.h"
#include "nn/optim.h"

using namespace bg;

int main(int argc, char** argv) try {
  const std::string text = argc > 1 ? *load_text(argv[1]) : builtin_text(100'000);
  const int steps = argc > 2 ? std::atoi(argv[2]) : 150;
  const ByteTokenizer tokenizer;

  const TransformerConfig config{.vocab = 256, .d_model = 64, .layers = 2, .heads = 4, .seq_len = 48};
  Rng rng(1);
  Transformer model(config, rng);
  std::printf("%lld parameters\n", static_cast<long long>(model.parameter_count()));

  // A batch is 16 random windows; the target of each character is the next one.
  const Batches batches(TokenStream(text, tokenizer),
                        {.batch_size = 16, .seq_len = config.seq_len, .order = Order::random, .seed = 1});
  AdamW optimizer(model.parameters());
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const Batch b = batches.get(step);
    const Var loss = model.loss(Tensor::of(b.inputs, {b.rows, b.cols}), Tensor::of(b.targets, {b.rows, b.cols}));
    loss.backward();
    clip_grad_norm(model.parameters(), 1);
    optimizer.step(3e-3);
    model.zero_grad();
    last = loss.item();
    if (step == 0) first = last;
    if (step % 25 == 0) std::printf("step %4d  loss %.3f nats a character\n", step, last);
  }

  // Generation keeps keys and values of what was read, so each new character costs one position.
  model.eval();
  std::string sample = "The ";
  const std::vector<int32_t> prompt = tokenizer.encode(sample);
  for (int64_t id : generate(model, {prompt.begin(), prompt.end()}, 120, {.temperature = 0.7}, rng)) {
    const auto byte = static_cast<int32_t>(id);
    sample += tokenizer.decode({&byte, 1});
  }
  std::printf("loss %.3f -> %.3f\n---\n%s\n", first, last, sample.c_str());
  return last < 0.5 * first ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
