// Reading whole files: every file that Boostgrad reads comes through here.
//
// The bytes are read into memory, never mapped: another program may shorten a file at any time, and touching a page
// that is gone ends the process (SIGBUS). What is no regular file is refused before a byte is read, so that neither a
// device without an end nor a pipe without a writer stops the program; and each kind of file has a largest size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"

namespace bg {

/// What a file is for, and so how much of it may be read. Nothing larger than the machine's memory is.
enum class FileKind {
  settings,    ///< config.json, results.json and the like: at most 16 MiB
  vocabulary,  ///< tokenizer.json: at most 256 MiB
  log,         ///< metrics.jsonl: at most 4 GiB; it may grow meanwhile, and is read as it was at first
  text,        ///< what is learned from; a pipe is read as well, up to 1 GiB, while something comes each minute
  data,        ///< tensors, arrays, token caches
};

/// The file could not be read, whatever is in it.
class UnreadableFile : public Error {
 public:
  using Error::Error;
};

/// The path names no file that could be read: it is missing, a folder, a device, or closed to this user.
class NoFile : public UnreadableFile {
 public:
  using UnreadableFile::UnreadableFile;
};

/// The bytes of a whole file. Throws UnreadableFile, naming the path and the reason: it is missing, a folder, a device,
/// a socket or a pipe; there is no permission; it is too large; or another program changed it while it was read.
std::string read_file(const std::filesystem::path& path, FileKind kind);

/// The same of a path that the user gave: where it names no file to read (NoFile), throws UsageError.
std::string read_named_file(const std::filesystem::path& path, FileKind kind);

/// The first `most` bytes of a file, or all of them, and its size. Throws UnreadableFile as read_file does.
struct FileBegin {
  std::string bytes;
  std::size_t size = 0;
};
FileBegin read_file_begin(const std::filesystem::path& path, std::size_t most);

/// False when the system says that there is no such file. True when it cannot tell, as in a folder without permission:
/// then read_file says why.
bool is_there(const std::filesystem::path& path);

/// The paths of all that is in a folder, in any order; none when there is no such folder. Throws UnreadableFile when it
/// cannot be read.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);

}  // namespace bg
