#include "models/trainer.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/engine.h"
#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/format.h"
#include "core/gemm.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/kernels/simd.h"
#include "core/read_file.h"
#include "core/tensor_ops.h"
#include "models/checkpoint.h"
#include "models/footprint.h"
#include "models/new_files.h"
#include "models/run_folder.h"
#include "models/run_log.h"
#include "models/unicode.h"
#include "nn/optim.h"

namespace bg {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr EnumNames<Window, 2> kWindowNames{"window", {"t+1", "t"}};

Tensor as_tensor(const std::vector<int64_t>& ids, const Batch& b) { return Tensor::of(ids, {b.rows, b.cols}); }

}  // namespace

// -- Options ----------------------------------------------------------------------------------------------------------

void TrainOptions::validate() const {
  auto check = [](bool good, const char* option, const auto& got, const char* expected) {
    if (!good) fail<UsageError>("train", str("bad --", option), str(got), expected);
  };
  model.validate();
  check(find_invalid_utf8(data) == std::string_view::npos, "data", printable(data),
        "a path in UTF-8, as config.json is");
  // bounds that keep every product of counts far from overflow
  check(steps >= 0 && steps <= 1'000'000'000'000, "steps", steps, "0 to 10^12");
  check(steps > 0 || (epochs >= 1 && epochs <= 1'000'000), "epochs", epochs, "1 to 10^6");
  check(batch_size >= 1 && batch_size <= 1'000'000'000, "batch-size", batch_size, "1 to 10^9");
  check(lr > 0 && std::isfinite(lr), "lr", lr, "a positive number");
  check(min_lr >= 0 && min_lr <= lr, "min-lr", min_lr, "0 to --lr");
  check(warmup >= 0, "warmup", warmup, "0 or more");
  check(weight_decay >= 0 && std::isfinite(weight_decay), "weight-decay", weight_decay, "0 or a positive number");
  check(beta1 >= 0 && beta1 < 1, "beta1", beta1, "at least 0 and below 1");
  check(beta2 >= 0 && beta2 < 1, "beta2", beta2, "at least 0 and below 1");
  check(clip > 0 && std::isfinite(clip), "clip", clip, "a positive number");
  check(save_every >= 1, "save-every", save_every, "1 or more");
  check(eval_every >= 0, "eval-every", eval_every, "0 or more");
  if (steps > 0) Schedule{schedule, lr, min_lr, warmup, steps}.validate();  // of epochs, once the text is known
}

json TrainOptions::to_json() const {
  return {{"data", data},
          {"model", model.to_json()},
          {"tokenizer", tokenizer},
          {"steps", steps},
          {"epochs", epochs},
          {"batch_size", batch_size},
          {"window", kWindowNames.name(window)},
          {"schedule", kScheduleNames.name(schedule)},
          {"lr", lr},
          {"min_lr", min_lr},
          {"warmup", warmup},
          {"weight_decay", weight_decay},
          {"decay", kDecayNames.name(decay)},
          {"beta1", beta1},
          {"beta2", beta2},
          {"clip", clip},
          {"save_every", save_every},
          {"eval_every", eval_every},
          {"seed", seed}};
}

TrainOptions TrainOptions::from_json(const json& j) {
  const JsonFields f(j, "run", "the part 'options'");
  TrainOptions o;
  o.data = f.text("data");
  o.model = TransformerConfig::from_json(f.at("model"));
  o.tokenizer = f.text("tokenizer");
  o.steps = f.whole("steps");
  o.epochs = f.whole("epochs");
  o.batch_size = f.whole("batch_size");
  o.window = kWindowNames.parse(f.word("window"));
  o.schedule = kScheduleNames.parse(f.word("schedule"));
  o.lr = f.number("lr");
  o.min_lr = f.number("min_lr");
  o.warmup = f.whole("warmup");
  o.weight_decay = f.number("weight_decay");
  o.decay = f.find("decay").is_null() ? Decay::all : kDecayNames.parse(f.word("decay"));
  o.beta1 = f.number("beta1");
  o.beta2 = f.number("beta2");
  o.clip = f.number("clip");
  o.save_every = f.whole("save_every");
  o.eval_every = f.whole("eval_every");
  o.seed = f.whole_unsigned("seed");
  return o;
}

// -- Progress ---------------------------------------------------------------------------------------------------------

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(seconds + 0.5);
  return s >= 3600 ? formatted("%lldh%02lldm", s / 3600, s / 60 % 60) : formatted("%lldm%02llds", s / 60, s % 60);
}

std::string TrainState::text() const {
  const std::string start = str(run, run.empty() ? "" : "  ", "step ", step, "/", total, "  ");
  if (validating) return start + "validating";
  return str(start, "loss ", loss, val_loss ? str("  val ", *val_loss) : "", "  ", static_cast<int64_t>(tokens_per_s),
             " tokens/s  ", duration_text(seconds_left), " left",
             all_seconds_left ? str(" of ", duration_text(*all_seconds_left), " for all") : "");
}

OnProgress while_preparing(const TrainProgress& progress) {
  return [&progress](std::string_view what, double share) {
    progress.preparing(what, share);
    if (progress.stop(0)) throw Interrupted();
  };
}

// -- Evaluation -------------------------------------------------------------------------------------------------------

double Evaluation::token_ppl() const { return std::exp(loss); }

namespace {

std::optional<double> ppl_by(const Evaluation& e, int64_t units) {
  if (units == 0) return {};
  return std::exp(e.loss * (static_cast<double>(e.tokens) / static_cast<double>(units)));
}

Batches evaluation_batches(const TokenStream& tokens, const TrainOptions& options) {
  return Batches(tokens, {.batch_size = options.batch_size,
                          .seq_len = options.model.seq_len,
                          .window = options.window,
                          .order = Order::in_order});
}

}  // namespace

std::optional<double> Evaluation::word_ppl() const { return ppl_by(*this, words); }
std::optional<double> Evaluation::byte_ppl() const { return ppl_by(*this, bytes); }

Evaluation count_evaluated(const TokenStream& tokens, const Tokenizer& tokenizer, std::string_view text,
                           const TrainOptions& options) {
  const Batches batches = evaluation_batches(tokens, options);
  Evaluation e;
  std::size_t end = 0, next = 0;  // of the token; of the characters that begin in it
  bool in_word = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(tokens[i]);
    const std::size_t bytes = tokenizer.decode({&id, 1}).size();
    end += bytes;
    if (end > text.size()) break;
    const bool predicted = batches.predicts(static_cast<int64_t>(i));
    e.tokens += predicted;
    e.bytes += predicted ? static_cast<int64_t>(bytes) : 0;
    while (next < end) {
      const Character c = character_at(text, next);
      const bool space = c.kind == CharClass::space;
      e.words += predicted && !space && !in_word;
      in_word = !space;
      next += c.bytes;
    }
  }
  BG_CHECK(end == text.size(), "corpus", "the tokens are not those of the text", str("at least ", end, " bytes"),
           str(text.size()));
  return e;
}

namespace {

// A model in evaluation mode, for as long as this lives.
class InEvaluation {
 public:
  explicit InEvaluation(Transformer& model) : model_(model), was_training_(model.training()) { model.eval(); }
  ~InEvaluation() { model_.train(was_training_); }
  InEvaluation(const InEvaluation&) = delete;
  InEvaluation& operator=(const InEvaluation&) = delete;

 private:
  Transformer& model_;
  bool was_training_;
};

}  // namespace

double evaluated_loss(Transformer& model, const TokenStream& tokens, const TrainOptions& options,
                      const ShouldStop& stop) {
  NoGrad off;
  const InEvaluation evaluation(model);
  const Batches batches = evaluation_batches(tokens, options);
  double sum = 0;
  std::size_t predicted = 0;
  for (int64_t i = 0; i < batches.per_epoch(); ++i) {
    if (stop && stop()) throw Interrupted();
    const Batch b = batches.get(i);
    sum += model.loss_sum(as_tensor(b.inputs, b), as_tensor(b.targets, b)).sum;
    predicted += b.targets.size();
  }
  return sum / static_cast<double>(predicted);
}

Evaluation evaluate(Transformer& model, const TokenStream& tokens, const Tokenizer& tokenizer, std::string_view text,
                    const TrainOptions& options, const ShouldStop& stop) {
  Evaluation e = count_evaluated(tokens, tokenizer, text, options);
  e.loss = evaluated_loss(model, tokens, options, stop);
  return e;
}

// -- Run folders ------------------------------------------------------------------------------------------------------

bool is_run(const fs::path& folder) { return is_there(folder / "config.json"); }

namespace {

// Of a run that came here without its weights, such as one of a published table.
constexpr const char* kWholeRun = "a copy of the whole run folder, or train the run again";

json read_config(const fs::path& folder) {
  if (!is_run(folder))
    fail<UsageError>("run", "not a run folder", str("'", folder.string(), "'"), "a folder with config.json",
                     "boostgrad train --out DIR");
  const fs::path path = folder / "config.json";
  json config = parse_json(read_named_file(path, FileKind::settings), "run", path.string());
  BG_CHECK(config.is_object() && config.contains("options"), "run", "damaged config.json",
           (folder / "config.json").string(), "the JSON that train wrote");
  return config;
}

json tokenizer_facts(const Tokenizer& tokenizer) {
  return {{"vocab", tokenizer.vocab_size()}, {"fingerprint", tokenizer.fingerprint()}};
}

}  // namespace

std::unique_ptr<Tokenizer> run_tokenizer(const fs::path& folder) {
  constexpr const char* kUnchanged = "the config.json that train wrote";
  const fs::path file = folder / "tokenizer.json";
  BG_CHECK(is_there(file), "run", str("the run has no ", file.string()), {}, {}, kWholeRun);
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(file);
  const json config = read_config(folder), trained = config.value("tokenizer", json());
  if (trained.is_null()) return tokenizer;
  const JsonFields facts(trained, "run", "the tokenizer in config.json");
  const uint64_t before = facts.whole_unsigned("fingerprint"), now = tokenizer->fingerprint();
  if (before != now)
    fail<UsageError>("run", str(file.string(), " is not the tokenizer of this run"), str("fingerprint ", now),
                     str(before), "the tokenizer.json that train wrote there");
  for (const json& vocab : {facts.at("vocab"), config["options"].value(json::json_pointer("/model/vocab"), json())})
    if (vocab != tokenizer->vocab_size())
      fail<UsageError>("run", str("the vocabulary in ", (folder / "config.json").string(), " was changed"),
                       json_excerpt(vocab), str(tokenizer->vocab_size(), ", as in tokenizer.json"), kUnchanged);
  return tokenizer;
}

TrainOptions run_options(const fs::path& folder) {
  const json config = read_config(folder);
  try {
    TrainOptions options = TrainOptions::from_json(config["options"]);
    options.validate();
    return options;
  } catch (const Error& e) {
    fail("run", str("damaged ", (folder / "config.json").string(), ": ", e.what()));
  }
}

Run load_run(const fs::path& folder) {
  Run run;
  run.options = run_options(folder);
  run.tokenizer = run_tokenizer(folder);
  Rng rng(run.options.seed);
  run.options.model.vocab = run.tokenizer->vocab_size();
  check_memory("run", run.options.model, 0);
  run.model = std::make_unique<Transformer>(run.options.model, rng);
  run.model->eval();
  const json owner = owner_facts(run.options, tokenizer_facts(*run.tokenizer));
  for (const fs::path& file : {folder / "model.safetensors", folder / "checkpoints" / "best.safetensors"}) {
    if (!is_there(file)) continue;
    const TensorFile weights = read_safetensors(file);
    if (const auto stored = weights.metadata.find(kOwnerKey); stored != weights.metadata.end())
      check_owner(parse_json_or_null(stored->second), owner, OwnerPart::function, file.string());
    run.model->load_state_dict(weights.tensors, file.string());
    run.weights = file.string();
    return run;
  }
  const auto newest = CheckpointFolder(folder / "checkpoints").newest([](const std::string& text) {
    std::fprintf(stderr, "%s\n", printable(text).c_str());
  });
  BG_CHECK(newest.has_value(), "run", "the run has no weights", folder.string(), "model.safetensors or a checkpoint",
           is_there(folder / "results.json") ? kWholeRun : "train it past --save-every steps");
  check_owner(newest->meta.value("run", json()), owner, OwnerPart::function, (folder / "checkpoints").string());
  run.model->load_state_dict(newest->model, folder.string());
  run.weights = (folder / "checkpoints").string();
  return run;
}

json build_facts() {
  return {{"version", "0.1.0"}, {"blas", blas_description()}, {"simd", simd_target()}, {"compiler", __VERSION__}};
}

std::string build_difference(const json& before) {
  constexpr std::pair<const char*, const char*> kFacts[] = {
      {"version", "version"}, {"blas", "BLAS core"}, {"simd", "SIMD target"}, {"compiler", "compiler"}};
  const json now = build_facts();
  std::string text;
  for (const auto& [key, label] : kFacts)
    if (before.contains(key) && before[key] != now[key])
      text += str(text.empty() ? "" : ", ", label, " ",
                  before[key].is_string() ? before[key].get<std::string>() : before[key].dump(), ", now ",
                  now[key].get<std::string>());
  return text;
}

namespace {

uLong checksum(std::initializer_list<std::string_view> texts) {
  constexpr size_t kBlock = size_t{1} << 30;  // zlib counts in 32 bits
  uLong crc = crc32(0, nullptr, 0);
  for (std::string_view t : texts)
    for (size_t at = 0; at < t.size(); at += kBlock)
      crc =
          crc32(crc, reinterpret_cast<const Bytef*>(t.data() + at), static_cast<uInt>(std::min(kBlock, t.size() - at)));
  return crc;
}

}  // namespace

// The same text may lie elsewhere on another machine: its content counts, not its path.
json text_facts(const Corpus& corpus) {
  return {{"train_bytes", corpus.train.size()},
          {"valid_bytes", corpus.valid.size()},
          {"crc32", checksum({corpus.train, corpus.valid})},
          {"test_bytes", corpus.test.size()},
          {"test_crc32", checksum({corpus.test})}};
}

bool same_text(const json& a, const json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  const bool both_know_test = a.contains("test_bytes") && b.contains("test_bytes");
  for (const char* key : {"train_bytes", "valid_bytes", "crc32", "test_bytes", "test_crc32"})
    if ((both_know_test || std::string_view(key).substr(0, 4) != "test") &&
        a.value(key, json()) != b.value(key, json()))
      return false;
  return true;
}

namespace {

// What the program calls an option, empty for those that no option sets alone.
std::string option_name(std::string key) {
  for (const char* other : {"window", "mlp_ratio", "tied"})
    if (key == other) return {};
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Every option by its key, but for the length of the run and what may differ between two parts of it.
json comparable_options(const TrainOptions& options) {
  json all = options.to_json(), model = options.model.to_json();
  for (const char* key : {"data", "model", "steps", "epochs"}) all.erase(key);
  model.erase("vocab");
  all.update(model);
  return all;
}

std::string length_option(const TrainOptions& o) {
  return o.steps > 0 ? str("--steps ", o.steps) : str("--epochs ", o.epochs);
}

std::string option_text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

void check_same_options(const TrainOptions& options, const fs::path& folder) {
  const TrainOptions before = run_options(folder);
  const auto refuse = [&](const std::string& what, const std::string& got, const std::string& expected,
                          const std::string& again) {
    fail<UsageError>("train", str("the run in ", folder.string(), " was started with another ", what), got, expected,
                     again + ", or another --out");
  };
  const std::string length = length_option(options), first_length = length_option(before);
  if (length != first_length) refuse("length, on which its learning rates depend", length, first_length, first_length);
  const json old = comparable_options(before), now = comparable_options(options);
  for (const auto& [key, value] : now.items()) {
    if (value == old[key]) continue;
    const std::string option = option_name(key), was = option_text(old[key]);
    refuse(option.empty() ? key : option, option_text(value), was,
           option.empty() ? "the --preset of the first start" : str(option, " ", shell_word(was)));
  }
}

namespace {

class Training {
 public:
  Training(const TrainOptions& given, fs::path out, bool resume, const TrainProgress& progress, const fs::path& shared)
      : o_(given), out_(std::move(out)), progress_(progress), checkpoints_(out_ / "checkpoints") {
    if (resume && is_run(out_)) check_text_is_there(o_.data, out_);
    const OnProgress preparing = while_preparing(progress_);
    preparing("reading the text", 0);
    texts_ = load_corpus(o_.data);
    preparing("reading the text", 1);
    open_folder(resume);
    check_same_text();
    open_tokenizer(shared, preparing);
    const fs::path cache = (shared.empty() ? out_ : shared) / "cache";
    make_folders(cache);
    auto tokens = [&](const char* name, std::string_view text) {
      return std::make_unique<TokenStream>(TokenStream::cached(cache / name, text, *tokenizer_, preparing));
    };
    train_ = tokens("train.tokens", texts_.train);
    valid_ = tokens("valid.tokens", texts_.valid);
    check_length("validation", *valid_);
    if (!texts_.test.empty()) {
      test_ = tokens("test.tokens", texts_.test);
      check_length("test", *test_);
    }
    batches_ = std::make_unique<Batches>(*train_, BatchOptions{.batch_size = o_.batch_size,
                                                               .seq_len = o_.model.seq_len,
                                                               .window = o_.window,
                                                               .order = o_.steps > 0 ? Order::random : Order::shuffled,
                                                               .seed = o_.seed});
    total_ = o_.steps > 0 ? o_.steps : o_.epochs * batches_->per_epoch();
    eval_every_ = o_.eval_every > 0 ? o_.eval_every
                  : o_.steps > 0    ? std::max<int64_t>(1, total_ / 5)
                                    : batches_->per_epoch();
    schedule_ = {o_.schedule, o_.lr, o_.min_lr, o_.warmup, total_};
    schedule_.validate();
    check_memory("train", o_.model, static_cast<double>(o_.batch_size) * static_cast<double>(o_.model.seq_len));
    Rng init(o_.seed);
    model_ = std::make_unique<Transformer>(o_.model, init);
    optimizer_ = std::make_unique<AdamW>(
        model_->parameters(), AdamWOptions{.beta1 = o_.beta1,
                                           .beta2 = o_.beta2,
                                           .weight_decay = o_.weight_decay,
                                           .decays = o_.decay == Decay::matrices ? decay_matrices : decay_all});
    if (!is_run(out_)) write_config();
    texts_.drop_train();
    if (resume) restore();
    kept_log_ = log_until(out_, step_);
    if (step_ > 0) progress_.say(str("resumed at step ", step_));
    if (not_validated_) progress_.say(str("validating after step ", step_, ", where the run was interrupted"));
  }

  TrainResult run() {
    // All that is needed has been read: from here on files are changed.
    make_folders(folder_->to_write("checkpoints"));
    const bool validated_late = std::exchange(not_validated_, false);
    if (validated_late) validate_last_logged();
    folder_->open_log(std::exchange(kept_log_, {}));
    if (validated_late) save();
    for (const CurvePoint& p : read_curve(out_)) losses_.push_back(p.train_loss);
    result_.resumed_at = step_;
    result_.parameters = model_->parameter_count();
    progress_.say(str(model_->parameter_count(), " parameters, ", train_->size(), " training tokens (",
                      tokenizer_->describe(), "), ", total_, " steps, seed ", o_.seed));
    if (step_ == total_ && is_there(out_ / "model.safetensors"))
      progress_.say(
          str("the run is finished: all its ", total_,
              " steps are done, and it cannot be made longer, because its learning rates depend on its length"));
    const double start = seconds_now();
    double in_steps = 0;  // without validations and checkpoints
    reset_peak_bytes();
    const int64_t first = step_;
    while (step_ < total_) {
      const double begin = seconds_now();
      json row = one_step();
      const double now = seconds_now();
      in_steps += now - begin;
      const double rate = static_cast<double>(predictions_) / (now - begin);
      row["tokens_per_s"] = rate;
      TrainState state;
      state.step = step_;
      state.total = total_;
      state.loss = result_.train_loss;
      state.tokens_per_s = rate;
      state.losses = losses_;
      if (step_ % eval_every_ == 0 || step_ == total_) {
        state.validating = true;
        progress_.state(state);
        state.validating = false;
        not_validated_ = !validated(row);
      }
      folder_->log(row);
      result_.interrupted = not_validated_ || (step_ < total_ && progress_.stop(step_));
      if (step_ % o_.save_every == 0 || step_ == total_ || result_.interrupted) save();
      if (result_.best_step > 0) state.val_loss = result_.val_loss;
      state.seconds_left = (now - start) / static_cast<double>(step_ - first) * static_cast<double>(total_ - step_);
      progress_.state(state);
      if (result_.interrupted) break;
    }
    peak_bytes_ = peak_bytes();
    result_.steps = step_;
    result_.seconds = seconds_now() - start;
    result_.tokens_per_s = static_cast<double>((step_ - first) * predictions_) / std::max(in_steps, 1e-9);
    try {
      if (!result_.interrupted) finish();
    } catch (const Interrupted&) {  // the checkpoint of the last step is there
      result_.interrupted = true;
    }
    return result_;
  }

 private:
  void open_folder(bool resume) {
    std::error_code ignored;
    if (fs::exists(out_, ignored) && !fs::is_directory(out_, ignored))
      fail<UsageError>("train", "--out is not a folder", out_.string(), "a folder, existing or new");
    new_files_.add_folder(out_);
    folder_ = std::make_unique<RunFolder>(out_);
    const bool exists = is_run(out_);
    if (!exists)
      new_files_.add_files(
          out_, {"tokenizer.json", "cache", "cache/train.tokens", "cache/valid.tokens", "cache/test.tokens"});
    if (exists && !resume)
      fail<UsageError>("train", "the folder already holds a run", out_.string(), "a new folder",
                       "--resume, or another --out");
    if (const std::string part = part_of_run(); !exists && !part.empty())
      fail<UsageError>("train", str("the folder holds ", part, " of a run without its config.json"), out_.string(),
                       "a new folder", "another --out");
    if (exists) {
      remove_stale_temporaries(out_);  // of a process that was killed while it wrote
      check_same_options(o_, out_);
    }
  }

  // A file that only a training leaves; empty when there is none.
  std::string part_of_run() const {
    for (const char* name : {"metrics.jsonl", "results.json", "model.safetensors"})
      if (is_there(out_ / name)) return name;
    return checkpoints_.empty() ? "" : "checkpoints";
  }

  // Found out before the training and not after it.
  void check_length(const char* which, const TokenStream& tokens) const {
    const int64_t size = static_cast<int64_t>(tokens.size()), least = o_.window == Window::t ? o_.model.seq_len : 2;
    check_text_length(size, least, which);
  }

  void check_same_text() const {
    if (!is_run(out_)) return;
    const json before = read_config(out_).value("text", json()), now = text_facts(texts_);
    if (!same_text(before, now))
      fail<UsageError>("train", "the run was started on another text", str(o_.data, " ", now.dump()), before.dump(),
                       "--data with the text of the first start, or another --out");
  }

  // The tokenizer is made once and kept with the run.
  void open_tokenizer(const fs::path& shared, const OnProgress& preparing) {
    if (is_run(out_)) {
      tokenizer_ = run_tokenizer(out_);
    } else {
      const fs::path made = shared / "tokenizer.json";
      tokenizer_ = !shared.empty() && is_there(made) ? Tokenizer::load(made)
                                                     : make_tokenizer(o_.tokenizer, texts_.train, preparing);
      tokenizer_->save(out_ / "tokenizer.json");
    }
    o_.model.vocab = tokenizer_->vocab_size();
    o_.model.validate();
  }

  // Comes after all that can be refused: a folder that has a config.json is a run that can go on.
  void write_config() {
    new_files_.keep();  // also where this fails: config.json may be there by then
    write_file_atomically(folder_->to_write("config.json"), json{{"options", o_.to_json()},
                                                                 {"text", text_facts(texts_)},
                                                                 {"tokenizer", tokenizer_facts(*tokenizer_)},
                                                                 {"build", build_facts()}}
                                                                    .dump(2) +
                                                                "\n");
  }

  void restore() {
    const auto c = checkpoints_.newest(progress_.say);
    if (!c) {
      check_young();
      progress_.say("no checkpoint yet: starting at step 0");
      return;
    }
    const std::string who = str("the checkpoint of step ", c->meta["step"].get<int64_t>());
    check_owner(c->meta.value("run", json()), owner(), OwnerPart::all, who);
    model_->load_state_dict(c->model, who);
    optimizer_->load_state_dict(c->optimizer, who);
    try {
      const JsonFields meta(c->meta, "checkpoint", "metadata");
      step_ = meta.whole("step");
      not_validated_ = !meta.find("not_validated").is_null() && meta.flag("not_validated");
      result_.train_loss = meta.find("train_loss").is_null() ? 0 : meta.number("train_loss");
      result_.best_step = meta.whole("best_step", 0);
      peak_bytes_ = meta.find("peak_bytes").is_null() ? 0 : meta.whole("peak_bytes", 0);
      if (result_.best_step > 0) {
        result_.best_val_loss = meta.number("best_val_loss");
        result_.val_loss = meta.number("val_loss");
      }
    } catch (const Error& e) {
      fail("checkpoint", str(who, " has damaged metadata"), e.what(), "what train wrote",
           "remove it to use the one before");
    }
    BG_CHECK(step_ >= 0 && step_ <= total_, "checkpoint", "a step that this run does not have", str(step_),
             str("0 to ", total_), "remove it to use the one before");
    if (result_.best_step > 0) check_best();
    if (const std::string other = build_difference(c->meta.value("build", json())); !other.empty())
      progress_.say(str("the checkpoint was written by another build or machine (", other,
                        "): bits may differ from an unbroken run"));
  }

  // A run that was stopped before its first checkpoint begins anew; one whose checkpoints are lost does not.
  void check_young() const {
    constexpr const char* kHint = "a copy of them, or train again into another --out";
    const std::string place = (out_ / "checkpoints").string();
    BG_CHECK(checkpoints_.empty(), "train", "all checkpoints of the run are damaged", place, {}, kHint);
    const std::vector<CurvePoint> curve = read_curve(out_);
    const bool young = curve.empty() || curve.back().step <= o_.save_every;  // which it may have logged and not saved
    const bool finished = is_there(out_ / "results.json") || is_there(out_ / "model.safetensors");
    BG_CHECK(young && !finished, "train", "the checkpoints of the run are gone", place, {}, kHint);
  }

  json owner() const { return owner_facts(o_, tokenizer_facts(*tokenizer_)); }

  // Without the best weights so far, those of the next validation are the best.
  void check_best() {
    try {
      check_state_fits(model_->state_dict(), read_safetensors(best_file()).tensors, best_file().string());
    } catch (const Error& e) {
      progress_.say(str("damaged best weights ", best_file().string(), " passed over: ", e.what()));
      result_.best_step = 0;
    }
  }

  fs::path best_file() const { return out_ / "checkpoints" / "best.safetensors"; }

  Checkpoint snapshot() const {
    json meta{{"step", step_},
              {"not_validated", not_validated_},
              {"train_loss", result_.train_loss},
              {"best_step", result_.best_step},
              {"peak_bytes", peak_bytes()},
              {"run", owner()},
              {"build", build_facts()}};
    if (result_.best_step > 0) {
      meta["best_val_loss"] = result_.best_val_loss;
      meta["val_loss"] = result_.val_loss;
    }
    return {model_->state_dict(), optimizer_->state_dict(), meta};
  }

  json one_step() {
    const Batch b = batches_->get(step_);
    predictions_ = b.rows * b.cols;
    Rng masks = Rng(o_.seed, 1).fork(static_cast<uint64_t>(step_));
    const Var loss = model_->loss(as_tensor(b.inputs, b), as_tensor(b.targets, b), {.rng = &masks});
    const double value = loss.item();
    check_finite("loss", value, step_ + 1);
    loss.backward();
    const double norm = clipped_norm();
    const double lr = schedule_.at(step_);
    optimizer_->step(lr);
    model_->zero_grad();
    ++step_;
    result_.train_loss = value;
    losses_.push_back(value);
    return {{"step", step_}, {"train_loss", value}, {"lr", lr}, {"grad_norm", norm}};
  }

  double clipped_norm() const {
    try {
      return clip_grad_norm(model_->parameters(), o_.clip);
    } catch (const Error& e) {
      fail("train", str("the gradient is not finite at step ", step_ + 1), e.what(), {}, str("a smaller --lr", kept()));
    }
  }

  void check_finite(const char* what, double value, int64_t step) const {
    BG_CHECK(std::isfinite(value), "train", str("the ", what, " is not finite at step ", step), number_text(value),
             "a finite number", str("a smaller --lr, or --clip", kept()));
  }

  // What there is to go back to.
  std::string kept() const {
    const auto newest = checkpoints_.newest_step();
    return newest ? str("; the checkpoint of step ", *newest, " is kept") : "; there is no checkpoint yet";
  }

  // NaN and infinite weights are no checkpoint to go back to.
  void check_weights() const {
    for (const auto& [path, t] : model_->state_dict())
      if (const int64_t bad = num::first_non_finite(t); bad >= 0)
        check_finite(str("weight ", path).c_str(), t.flat(bad), step_);
  }

  void save() {
    check_weights();
    folder_->flush_log();
    folder_->to_write("checkpoints");
    checkpoints_.save(step_, snapshot());
  }

  ShouldStop stop() const {
    return [this] { return progress_.stop(step_); };
  }

  // Adds the validation loss to what is logged of the step; false when it was interrupted.
  bool validated(json& row) {
    try {
      row["val_loss"] = validate();
      return true;
    } catch (const Interrupted&) {
      return false;
    }
  }

  // The validation that an interruption broke off. Its step is logged without it until then, so that a kill meanwhile
  // leaves the log as long as the checkpoint says.
  void validate_last_logged() {
    const size_t begin = kept_log_.find_last_of('\n', kept_log_.size() - 2) + 1;  // npos + 1 is 0
    json row = parse_json(kept_log_.substr(begin), "run", (out_ / "metrics.jsonl").string());
    row["val_loss"] = validate();
    kept_log_ = kept_log_.substr(0, begin) + row.dump() + '\n';
  }

  double validate() {
    result_.val_loss = evaluated_loss(*model_, *valid_, o_, stop());
    check_finite("validation loss", result_.val_loss, step_);
    if (result_.best_step == 0 || result_.val_loss < result_.best_val_loss) {
      result_.best_val_loss = result_.val_loss;
      result_.best_step = step_;
      folder_->to_write("checkpoints");
      write_safetensors(best_file(), {model_->state_dict(), {{kOwnerKey, owner().dump()}}});
    }
    return result_.val_loss;
  }

  void finish() {
    if (result_.best_step == 0) validate();
    folder_->to_write("checkpoints");  // best_file() is still of this run
    const TensorFile weights = read_safetensors(best_file());
    model_->load_state_dict(weights.tensors, best_file().string());
    RunResults r;
    if (test_) {  // first: with model.safetensors the run counts as finished
      r.test = evaluate(*model_, *test_, *tokenizer_, texts_.test, o_, stop());
      result_.test_loss = r.test->loss;
    }
    write_safetensors(folder_->to_write("model.safetensors"), weights);
    r.parameters = result_.parameters;
    r.steps = total_;
    r.best_step = result_.best_step;
    r.train_loss = result_.train_loss;
    r.valid_last = r.valid_best = count_evaluated(*valid_, *tokenizer_, texts_.valid, o_);
    r.valid_last.loss = result_.val_loss;
    r.valid_best.loss = result_.best_val_loss;
    if (peak_bytes_ > 0) r.peak_bytes = peak_bytes_;
    r.step_seconds = median_step_seconds(read_curve(out_), o_);
    folder_->to_write("results.json");
    write_results(out_, r);
  }

  // Most bytes in tensors so far, over all parts of a run that was resumed; none before its first step.
  int64_t peak_bytes() const {
    return std::max(peak_bytes_, step_ > result_.resumed_at ? static_cast<int64_t>(memory_stats().peak_bytes) : 0);
  }

  TrainOptions o_;
  fs::path out_;
  const TrainProgress& progress_;
  CheckpointFolder checkpoints_;
  NewFiles new_files_;  // of a run that has not begun
  std::unique_ptr<RunFolder> folder_;
  std::string kept_log_;  // the steps that a run which goes on has logged
  Corpus texts_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<TokenStream> train_, valid_, test_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<AdamW> optimizer_;
  Schedule schedule_;
  int64_t total_ = 0, eval_every_ = 1, step_ = 0, predictions_ = 0, peak_bytes_ = 0;
  bool not_validated_ = false;  // the validation after step_ was interrupted
  std::vector<double> losses_;  // of all steps
  TrainResult result_;
};

}  // namespace

TrainResult train(const TrainOptions& options, const fs::path& out, bool resume, const TrainProgress& progress,
                  const fs::path& shared) {
  options.validate();
  try {
    return Training(options, out, resume, progress, shared).run();
  } catch (const Interrupted&) {
    TrainResult nothing;
    nothing.interrupted = true;
    return nothing;
  }
}

}  // namespace bg
