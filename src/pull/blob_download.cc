#include "pull/blob_download.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace qlora {
namespace {

constexpr std::int64_t kHashPiece = std::int64_t{1} << 20;

// Git hashes "blob 123", a zero byte, and the 123 bytes of the content; large files, which git does
// not hold, have the sha256 of the content alone.
ContentHash HashFor(const HubFile& file) {
  if (file.is_large()) return ContentHash::Sha256();
  ContentHash hash = ContentHash::Sha1();
  const std::string header = fmt::format("blob {}", file.size);
  hash.Update(std::string_view(header.c_str(), header.size() + 1));
  return hash;
}

}  // namespace

BlobDownload::BlobDownload(const DownloadTools& tools, const HubFile& file)
    : tools_(tools),
      file_(file),
      url_(tools.api.FileUrl(tools.commit, file.path)),
      partial_(tools.cache.Partial(file)),
      hash_(HashFor(file)),
      fd_(OpenForWriting(partial_, OpenMode::kUpdate)) {}

BlobDownload::~BlobDownload() {
  if (size_ == 0) unlink(partial_.c_str());  // nothing to continue
  close(fd_);
}

// The content is on the disk and correct only if it has the hash of the list. A partial file of an
// earlier run may be damaged, so a wrong hash has one more try from the first byte on:
//
//   partial file -> request for the rest -> hash right: done
//                                        -> hash wrong: remove all, request everything
//                                                         -> hash wrong: the server is at fault
void BlobDownload::Run() {
  HashPartial();
  for (int round = 0; !(size_ == file_.size && Finish()); ++round) {
    if (round == 2) {
      ThrowRuntime(
          "{}: the content from {} has another {} than {}, twice; a proxy or the disk may be at "
          "fault",
          Abridged(file_.path), host_.empty() ? "the disk" : host_,
          file_.is_large() ? "sha256" : "git sha1 hash", file_.oid);
    }
    if (size_ == file_.size) StartOver();
    furthest_ = size_;
    WithRetries(
        tools_.retry, [this] { Fetch(); }, [this] { return IsFurther(); });
  }
}

// True when the last attempt got further than all before.
bool BlobDownload::IsFurther() {
  return std::exchange(furthest_, std::max(furthest_, size_)) < size_;
}

// Adds the bytes of an earlier run to the hash, which needs all bytes from the first on.
void BlobDownload::HashPartial() {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) ThrowRuntime("{}: cannot be read", partial_.string());
  if (status.st_size > file_.size) return StartOver();
  std::vector<char> piece(kHashPiece);
  while (size_ < status.st_size) {
    tools_.retry.check();
    const ssize_t got = pread(fd_, piece.data(), piece.size(), size_);
    if (got <= 0) ThrowRuntime("{}: cannot be read: {}", partial_.string(), std::strerror(errno));
    hash_.Update({piece.data(), static_cast<std::size_t>(got)});
    size_ += got;
    tools_.on_bytes(got, /*received=*/false);
  }
}

// One request for the missing bytes.
void BlobDownload::Fetch() {
  if (size_ == file_.size && size_ > 0) return;
  HttpGetRequest request{.url = url_, .begin = size_};
  request.on_head = [this](const HttpHead& head) { CheckHead(head); };
  request.on_body = [this](const HttpHead& head, std::string_view bytes) {
    if (bytes.empty()) {
      CheckBody(head);
    } else {
      Take(bytes);
    }
  };
  const HttpGetReply reply = tools_.client.Get(request);
  if (reply.head.status == 416) {  // the partial file is longer than the file of this server
    StartOver();
    throw PassingError(fmt::format("{}: the partial file does not fit", Abridged(file_.path)));
  }
  if (reply.head.status != 200 && reply.head.status != 206)
    tools_.api.ThrowStatus(reply, file_.path);
  if (size_ < file_.size) {
    throw PassingError(fmt::format("{}: {} ended after {} of {} bytes", Abridged(file_.path),
                                   reply.head.host, size_, file_.size));
  }
}

// The commit was asked for, and no other will do.
void BlobDownload::CheckHead(const HttpHead& head) {
  const std::string commit = head.Find("x-repo-commit");
  if (!commit.empty() && commit != tools_.commit) {
    ThrowRuntime("{}: {} sends the file of commit {}, expected {}", Abridged(file_.path), head.host,
                 Abridged(commit), tools_.commit);
  }
}

// Called before the first byte of a body. 206 answers a request for the rest and must send exactly
// the rest; 200 sends the whole file, as servers do that know no ranges. A length that differs from
// the list is refused before the disk is filled with the wrong file.
void BlobDownload::CheckBody(const HttpHead& head) {
  host_ = head.host;
  if (head.Find("content-type").starts_with("text/html") && !file_.path.ends_with(".html")) {
    ThrowRuntime("{}: {} sends a page instead of the file; a proxy may ask for a login",
                 Abridged(file_.path), head.host);
  }
  if (head.status == 206) {
    const std::string range = head.Find("content-range");
    if (range != fmt::format("bytes {}-{}/{}", size_, file_.size - 1, file_.size)) {
      StartOver();
      throw PassingError(fmt::format("{}: {} sends the range '{}', which was not asked for",
                                     Abridged(file_.path), head.host, Abridged(range)));
    }
    return;
  }
  if (size_ > 0) StartOver();  // the server sends the whole file
  const std::string length = head.Find("content-length");
  if (!length.empty() && head.Find("content-encoding").empty() &&
      length != std::to_string(file_.size)) {
    ThrowRuntime("{}: {} sends {} bytes, and the list says {}", Abridged(file_.path), head.host,
                 Abridged(length), file_.size);
  }
}

// A body that is longer than the list says is refused while it comes.
void BlobDownload::Take(std::string_view bytes) {
  if (std::ssize(bytes) > file_.size - size_) {
    ThrowRuntime("{}: {} sends more than the {} bytes of the list", Abridged(file_.path), host_,
                 file_.size);
  }
  internal::WriteAll(fd_, partial_, size_, std::as_bytes(std::span(bytes)));
  hash_.Update(bytes);
  size_ += std::ssize(bytes);
  tools_.on_bytes(std::ssize(bytes), /*received=*/true);
}

void BlobDownload::StartOver() {
  if (ftruncate(fd_, 0) != 0) {
    ThrowRuntime("{}: cannot be written: {}", partial_.string(), std::strerror(errno));
  }
  tools_.on_bytes(-size_, /*received=*/false);
  size_ = 0;
  hash_ = HashFor(file_);
}

// False when the content does not have the hash of the list. The bytes are on the disk before the
// blob gets its name, since every later program takes a blob that is there for right.
bool BlobDownload::Finish() {
  if (hash_.Finish() != file_.oid) return false;
  if (fsync(fd_) != 0) {
    ThrowRuntime("{}: cannot be written: {}", partial_.string(), std::strerror(errno));
  }
  std::error_code error;
  std::filesystem::rename(partial_, tools_.cache.Blob(file_), error);
  if (error) ThrowRuntime("{}: cannot be renamed: {}", partial_.string(), error.message());
  return true;
}

}  // namespace qlora
