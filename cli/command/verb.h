// A verb of the program: a text for the reader, options, and an action.
#ifndef QLORA_CLI_COMMAND_VERB_H_
#define QLORA_CLI_COMMAND_VERB_H_

#include <ostream>
#include <string>
#include <vector>

#include "qlora/communicator.h"
#include "qlora/options.h"
#include "terminal/terminal.h"

namespace qlora {

// The streams that a verb writes to. Results go to `out`, all other text to `err`.
struct Console {
  std::ostream& out;
  std::ostream& err;
  TerminalStyle style;  // of err
  TerminalStyle out_style;
};

struct VerbText {
  std::string name;
  std::string summary;                   // one line, for the list of verbs
  std::string explanation;               // one paragraph
  std::vector<std::string> examples;     // commands that work as printed
  std::vector<std::string> positionals;  // options that bare arguments set, in order
  std::vector<std::string> required;     // options that must be given
  bool writes = false;                   // changes files, so that errors say that nothing changed
  // What a shell offers for bare arguments: files, these names too, or folders alone.
  std::vector<std::string> offered = {};
  bool takes_folders = false;
  bool on_ranks = false;    // may be run by several processes together
  bool is_program = false;  // not a verb of qlora but the program qlora-<name>

  std::string command() const { return (is_program ? "qlora-" : "qlora ") + name; }
};

class Verb {
 public:
  virtual ~Verb() = default;
  virtual VerbText text() const = 0;
  // Returns the arguments as the parser of command lines reads them: a verb may name a bare one.
  virtual std::vector<std::string> Spell(std::vector<std::string> arguments) const {
    return arguments;
  }
  // Adds the options; their values live in this object.
  virtual void Declare(OptionTable& table) = 0;
  // Called once the options are set: gives open options values that depend on the others.
  virtual void Complete(OptionTable& /*table*/) {}
  // Called before Run. ranks: the processes that run this command together, or one alone.
  void Join(Communicator& ranks) { ranks_ = &ranks; }
  // Returns the exit code. Errors: qlora::Error, whose code is the exit code; Interrupted.
  virtual int Run(const Console& console) = 0;

 protected:
  Communicator& ranks() { return *ranks_; }

 private:
  Communicator* ranks_ = nullptr;
};

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_VERB_H_
