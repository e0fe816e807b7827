// Writing: all files of Boostgrad go through here. AtomicFile never leaves a half-written file: checkpoints, caches,
// configurations and reports. The bytes go to `path.tmp-<pid>-<n>`; commit() flushes them to the disk, renames the
// temporary over `path` and flushes the folder. Until then, and after any failure, `path` is what it was before (a disk
// that fails in that last flush may have the new content). AppendFile is for a log, whose last line may be cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace bg {

/// Streams bytes into a new version of one file.
///
///   AtomicFile file("run/model.safetensors");
///   file.write(header);
///   file.write(data, bytes);
///   file.commit();
///
/// Every failure (no such folder, full disk, size limit, no permission) throws Error with the path and the system's
/// reason, and the temporary is removed. Without commit() the destructor removes it too. The folder must exist. A
/// symbolic link is followed; a path that names anything but a regular file (folder, device, pipe) is refused. The
/// first use makes the process ignore SIGXFSZ (if nobody handles it), so that a write past the size limit of the
/// process becomes such an Error instead of ending the program.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);  ///< appends; small pieces are collected into larger blocks
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();  ///< the new content becomes visible, all at once; nothing may be written afterwards

 private:
  void write_out(const char* data, std::size_t bytes);
  void flush_buffer();
  void discard() noexcept;
  [[noreturn]] void fail_with_errno(std::string_view action);
  void check_open() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string buffer_;
  int fd_ = -1;
};

/// A file that grows piece by piece, at its end. Every failure throws Error with the path and the system's reason; then
/// part of the piece may be in the file.
class AppendFile {
 public:
  /// Opens a regular file, or makes it.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Throws Error when another program removed the file, moved it, put another one in its place, or changed its size.
  void check() const;
  void append(std::string_view text);  ///< check(), then all of the text
  void flush();                        ///< to the disk: it survives a power cut

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;  // in bytes, by what was written
};

/// Whether `path` still names what the descriptor has open: another program may have put another in its place.
bool names_open_file(const std::filesystem::path& path, int fd);

/// Replaces the content of `path` by `content`, all or nothing. Throws Error as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Throws UsageError, with AtomicFile's reason, when `path` cannot be written. Call it before long work whose result
/// goes there.
void check_writable(const std::filesystem::path& path);

/// Makes `folder`, with its parents, unless it exists. Throws Error with the path and the system's reason; UsageError
/// where no folder can be made at such a path.
void make_folders(const std::filesystem::path& folder);

/// Removes the temporaries of writers that were killed, in `folder` and below. Only for a folder that no other process
/// writes to.
void remove_stale_temporaries(const std::filesystem::path& folder);

}  // namespace bg
