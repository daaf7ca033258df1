#include "serve/serve_options.h"

#include "backend/backend_factory.h"
#include "base/check.h"
#include "model/shared_options.h"
#include "plan/memory_plan.h"
#include "plan/new_adapter.h"
#include "qlora/train_options.h"

namespace qlora {

// --help shows the options of a table in this order.
void ServeOptions::Declare(OptionTable& table) {
  table.Section("Models");
  DeclareModelPath(table, &model.model_name_or_path);
  table
      .AddPath("adapter", &model.adapter,
               "an adapter to serve beside the base, as NAME=FOLDER; without a name, that of the "
               "folder; may be given again",
               {"adapter_name_or_path", "lora_model_dir", "lora_modules"})
      .repeats = true;
  table.Add("served_model_name", &served_model_name,
            "the name of the base for clients; default: that of its folder");
  table.AddPath("adapter_dir", &adapter_dir,
                "folder of the adapters that /v1/load_lora_adapter may load; default: none");
  table.Add("max_lora_rank", &max_lora_rank,
            "with adapter_dir or runs: largest rank of adapters that come later, for which passes "
            "get room");
  table.AddPath("runs", &runs,
                "folder of fine-tuning jobs and their files; default: no jobs are taken");
  table.Add("max_file_size", &max_file_size, "size of a file for jobs, at most");
  table.Choice("load_in_4bit", &model.load_in_4bit, {"auto", "true", "false"},
               "load the linear layers in 4 bits; auto: as the adapters were trained, else true");
  model.quantization.Declare(table);
  DeclareComputeType(table, &model.compute_dtype);
  DeclareDevice(table, &model.device);
  model.chat.Declare(table);
  table.Add("copy_weights", &model.copy_weights,
            "copy weights into this process, prepacked, if they take less than half of the "
            "available memory: faster tokens, but nothing is shared with other processes");

  table.Section("Server");
  table.Add("host", &host, "address to listen at; any but this machine's own needs an api_key");
  table.Add("port", &port, "port to listen at; 0: any that is free");
  table.Add("api_key", &api_key, "key that clients must send; default: none");
  table.AddPath("api_key_file", &api_key_file,
                "file with that key, which no list of processes shows");
  for (const char* name : {"api_key", "api_key_file"}) {
    Option* key = table.Find(name);
    // A server that was to be locked would be open.
    key->needs_text = true;
    key->hint = "leave the option out to ask for no key";
  }
  table
      .Add("allow_host", &allow_host,
           "further names of this server, such as that of a proxy; may be given again")
      .repeats = true;
  table
      .Add("allow_origin", &allow_origin,
           "sites whose pages may use this server, as https://name; may be given again")
      .repeats = true;
  table.Add("page", &page, "show a page at /, where people try and compare the models");
  table.AddPath("log_requests", &log_requests,
                "folder that keeps conversations, and what people say of the answers, as files "
                "that train reads; default: none are kept");

  table.Section("Answers");
  table.Add("context_length", &context_length,
            "tokens of a prompt and its answer; 0: the model's, as far as there is memory");
  table.Add("max_sequences", &max_sequences, "answers that are written at the same time, at most");
  table.Add("max_queue", &max_queue, "further requests that wait; more are refused");
  table.Add("max_new_tokens", &max_new_tokens,
            "tokens of an answer whose request sets no limit; 0: to the end of the context");
  table.Add("max_step_ms", &max_step_ms,
            "milliseconds that reading prompts may hold up the answers that are written");
  table.Add("max_memory", &max_memory,
            "memory that the server may use, such as 8GB; default: half of what is available for "
            "keys and values");
  table.Add("kv_memory", &kv_memory, "memory for keys and values, in place of max_memory");
  table.Add("seed", &seed, "random seed of requests without one; default: each draws its own");
}

void ServeOptions::Check() const {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) ThrowInvalidInput("{}: expected {} or more, found {}", name, least, value);
  };
  constexpr std::int64_t kHighestPort = 65535;
  at_least("port", port, 0);
  if (port > kHighestPort) {
    ThrowInvalidInput("port: expected 0 to {}, found {}", kHighestPort, port);
  }
  at_least("context_length", context_length, 0);
  at_least("max_sequences", max_sequences, 1);
  at_least("max_queue", max_queue, 0);
  at_least("max_new_tokens", max_new_tokens, 0);
  at_least("max_step_ms", max_step_ms, 1);
  at_least("max_lora_rank", max_lora_rank, 1);
  CheckRank("max_lora_rank", max_lora_rank);
  if (!gets_adapters() && max_lora_rank != ServeOptions().max_lora_rank) {
    ThrowInvalidInput("max_lora_rank: is of adapters that come later, with adapter_dir or runs");
  }
  const std::int64_t of_jobs = TrainOptions().lora_r;
  if (!runs.empty() && max_lora_rank < of_jobs) {
    ThrowInvalidInput("max_lora_rank: jobs (--runs) train adapters of rank {}, found {}", of_jobs,
                      max_lora_rank);
  }
  ParseBytes(max_file_size);
  if (!max_memory.empty()) ParseBytes(max_memory);
  if (!kv_memory.empty()) ParseBytes(kv_memory);
  if (!max_memory.empty() && !kv_memory.empty()) {
    ThrowInvalidInput("max_memory and kv_memory: one follows from the other; keep one");
  }
  if (!api_key.empty() && !api_key_file.empty()) {
    ThrowInvalidInput("api_key and api_key_file: keep one");
  }
}

}  // namespace qlora
