// Looking into a trained model: on windows of a text, what each round of each attention layer does. Everything comes
// from SelfAttention::trace, the layer in plain steps on its real inputs, in evaluation mode.
//
//   entropy     of the attention weights, in nats, by round, layer and head
//   residual    |x - F_m| / |x| of a token, after each round
//   gate        g_m: over everything, by dimension, and its mean over dimensions (openness) against the entropy of
//               round 0 at the same token
//   hull        F_0 of a head is an average of the values that its token sees, a point of their convex hull; F_m need
//               not be. share = distance(F_m, hull) / |F_m - F_0|, in [0, 1]: how much of what the rounds added no
//               single pass over those values could have given
//   tokens      where the corrections lower the loss most, and where they raise it most, against a reference
#pragma once

#include <limits>
#include <nlohmann/json_fwd.hpp>

#include "models/spread.h"
#include "models/token_stream.h"
#include "models/transformer.h"

namespace bg {

struct AnalysisOptions {
  int64_t tokens = 4096;       ///< predictions to look at, in whole windows of the model's length
  int64_t hull_tokens = 128;   ///< of them, for distances to hulls
  int64_t shown_tokens = 8;    ///< helped most, and as many hurt most
  int64_t shown_context = 48;  ///< tokens before each of those
  uint64_t seed = 1;           ///< of the choice of windows and of hull_tokens

  void validate() const;  ///< throws UsageError naming the option
};

/// Tokens of similar entropy: means over an equal share of them.
struct OpennessBin {
  Spread entropy, openness;
};

struct HullShare {
  Spread share;
  int64_t outside = 0;  ///< points with a share above kOutside
  static constexpr double kOutside = 1e-3;
};

/// One round of one layer. What the round does not have is empty: gates in round 0 or without one, hulls in round 0.
struct RoundLook {
  std::vector<Spread> entropy;  ///< by head
  Spread residual;
  Spread gate;
  std::vector<Spread> gate_by_dimension;
  std::vector<OpennessBin> openness;                                       ///< by rising entropy of round 0
  double openness_correlation = std::numeric_limits<double>::quiet_NaN();  ///< NaN where one of the two is constant
  std::vector<HullShare> hull;                                             ///< by head
};

struct LayerLook {
  std::vector<RoundLook> rounds;
};

/// A prediction with the attention that led to it.
struct TokenLook {
  std::vector<std::string>
      context;         ///< the last tokens that the model saw, printable; the last one made the prediction
  std::string target;  ///< what came
  double loss = 0, reference_loss = 0;  ///< nats
  /// [layer][round][context token]: weights of the last token, mean over heads.
  std::vector<std::vector<std::vector<double>>> attention;
  size_t telling_layer = 0;  ///< where the first and the last round differ most (total variation)
};

struct TokenLooks {
  Spread gain;                          ///< reference loss - loss over all predictions, nats
  double better = 0;                    ///< share of predictions with a positive gain
  std::vector<TokenLook> helped, hurt;  ///< largest and smallest gain first
};

struct Analysis {
  int64_t tokens = 0, windows = 0;
  double loss = 0;  ///< mean over the tokens looked at
  std::vector<LayerLook> layers;
};

/// Whole windows of a text, drawn without replacement and kept in the text's order.
struct Windows {
  std::vector<Tensor> inputs, targets;  ///< (1, T) each
};
/// Throws Error when the text has fewer than two tokens; a text shorter than seq_len + 1 gives one shorter window.
Windows draw_windows(const TokenStream& text, int64_t seq_len, const AnalysisOptions& options);

/// The model must be in evaluation mode.
Analysis analyse(const Transformer& model, const Windows& windows, const AnalysisOptions& options);

/// Predictions of `model` against those of `reference` on the same windows. Throws Error when their vocabularies
/// differ.
TokenLooks compare_tokens(const Transformer& model, const Transformer& reference, const Tokenizer& tokenizer,
                          const Windows& windows, const AnalysisOptions& options);

/// The same weights with every round after the first left out (gate 0). Throws Error for a model of a single round.
std::unique_ptr<Transformer> without_corrections(const Transformer& model);

/// Attention among the tokens of one sentence: [layer][round] -> (n, n) row by row, mean over heads.
struct AttentionMaps {
  std::vector<std::string> tokens;  ///< printable
  std::vector<std::vector<std::vector<double>>> layers;
};
/// Of the first `most` tokens, or seq_len if that is less. Throws Error when the sentence has no tokens.
AttentionMaps attention_maps(const Transformer& model, const Tokenizer& tokenizer, std::string_view sentence,
                             int64_t most);

nlohmann::ordered_json to_json(const Analysis& analysis);
nlohmann::ordered_json to_json(const TokenLooks& tokens);
nlohmann::ordered_json to_json(const AttentionMaps& maps);

}  // namespace bg
