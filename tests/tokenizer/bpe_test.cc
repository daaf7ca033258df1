#include "tokenizer/bpe.h"

#include <gmock/gmock.h>

#include <map>

#include "qlora/error.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;
using PieceIds = std::vector<std::pair<std::string, std::int32_t>>;

struct Model {
  PieceIds pieces;
  std::vector<std::array<std::int32_t, 3>> merges;

  std::int32_t Id(const std::string& text) const {
    for (const auto& [piece, id] : pieces) {
      if (piece == text) return id;
    }
    return -1;
  }
  void Merge(const std::string& left, const std::string& right) {
    if (Id(left + right) < 0) pieces.emplace_back(left + right, pieces.size());
    merges.push_back({Id(left), Id(right), Id(left + right)});
  }
  BpeConfig Config() const {
    BpeConfig config;
    config.pieces = &pieces;
    config.merges = merges;
    return config;
  }
};

// a, b, c and random merges of what is there.
Model RandomModel(std::uint64_t seed) {
  Model model{{{"a", 0}, {"b", 1}, {"c", 2}}, {}};
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto pick = [&](std::uint64_t which) {
      return model.pieces[RandomBelow(key, 2 * i + which, model.pieces.size())].first;
    };
    const std::string left = pick(0);
    const std::string right = pick(1);
    if (left.size() + right.size() < 12) model.Merge(left, right);
  }
  return model;
}

std::string RandomLetters(std::uint64_t seed, std::size_t size) {
  const RandomKey key = MakeKey(seed, RandomPlace::kTest, 1);
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += static_cast<char>('a' + RandomBelow(key, i, 3));
  return text;
}

// The definition: merge the pair of lowest rank, leftmost first, until none is left.
Ids MergeByDefinition(const Model& model, const std::string& text) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> ranks;
  for (std::size_t i = 0; i < model.merges.size(); ++i) {
    ranks[{model.merges[i][0], model.merges[i][1]}] = {i, model.merges[i][2]};  // the last counts
  }
  Ids ids;
  for (const char c : text) ids.push_back(c - 'a');
  while (true) {
    std::size_t best = ids.size();
    std::size_t best_rank = model.merges.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = ranks.find({ids[i], ids[i + 1]});
      if (merge != ranks.end() && merge->second.first < best_rank) {
        best = i;
        best_rank = merge->second.first;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = ranks[{ids[best], ids[best + 1]}].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

Ids Encode(const Bpe& bpe, std::string_view word) {
  BpeScratch scratch;
  Ids ids;
  bpe.Encode(word, &scratch, &ids);
  return ids;
}

TEST(Bpe, MergesByDefinitionInShortAndLongWords) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Model model = RandomModel(seed);
    const Bpe bpe(model.Config());
    for (const std::size_t size : {0, 1, 2, 7, 30, 48, 49, 50, 120, 400}) {
      const std::string text = RandomLetters(seed * 100 + size, size);
      EXPECT_EQ(Encode(bpe, text), MergeByDefinition(model, text)) << text;
    }
    for (const std::size_t size : {5, 47, 48, 49, 333}) {
      const std::string text(size, 'a');
      EXPECT_EQ(Encode(bpe, text), MergeByDefinition(model, text)) << text;
    }
  }
}

TEST(Bpe, MegabyteWithoutSpaces) {
  const Model model = RandomModel(7);
  const Bpe bpe(model.Config());
  std::string decoded;
  const std::string text = RandomLetters(3, 1 << 20);
  for (const std::int32_t id : Encode(bpe, text)) decoded += model.pieces[id].first;
  EXPECT_EQ(decoded, text);
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  Model model = RandomModel(1);
  model.pieces.emplace_back("abcabcabcab", model.pieces.size());
  BpeConfig config = model.Config();
  EXPECT_NE(Encode(Bpe(config), "abcabcabcab").size(), 1u);
  config.ignore_merges = true;
  EXPECT_THAT(Encode(Bpe(config), "abcabcabcab"), ElementsAre(model.Id("abcabcabcab")));
}

TEST(Bpe, UnknownCharacters) {
  const PieceIds pieces = {{"a", 0}, {"<unk>", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}};
  BpeConfig config;
  config.pieces = &pieces;
  EXPECT_THAT(Encode(Bpe(config), "axxa"), ElementsAre(0, 0));
  config.unk_token = "<unk>";
  EXPECT_THAT(Encode(Bpe(config), "axxa"), ElementsAre(0, 1, 1, 0));
  config.fuse_unk = true;
  EXPECT_THAT(Encode(Bpe(config), "axxa"), ElementsAre(0, 1, 0));
  config.byte_fallback = true;
  EXPECT_THAT(Encode(Bpe(config), "a\u00e9x\u00e8"), ElementsAre(0, 2, 3, 1));
  // Byte pieces overtake an unknown token that waits, as in Hugging Face.
  EXPECT_THAT(Encode(Bpe(config), "x\u00e9xa"), ElementsAre(2, 3, 1, 0));
  config.byte_fallback = false;
  config.unk_token = "[UNK]";
  EXPECT_THAT(Encode(Bpe(config), "aa"), ElementsAre(0, 0));
  EXPECT_THROW(Encode(Bpe(config), "ax"), Error);
}

TEST(Bpe, ByteCharacters) {
  EXPECT_EQ(ByteCharacter('A'), U'A');
  EXPECT_EQ(ByteCharacter(' '), U'\u0120');
  EXPECT_EQ(ByteCharacter('\n'), U'\u010A');
  EXPECT_EQ(ByteCharacter(0xAD), U'\u0143');
  EXPECT_EQ(BytesOfByteCharacters("\u0120caf\u00c3\u00a9"), " caf\u00e9");
  EXPECT_EQ(BytesOfByteCharacters("a b"), std::nullopt);
  EXPECT_EQ(BytesOfByteCharacters("\u4e2d"), std::nullopt);
}

TEST(TokenizerTables, GrowAndFind) {
  PieceTable table;
  PrefixTrie trie;
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(table.Insert("piece" + std::to_string(i), i));
    EXPECT_TRUE(trie.Insert("piece" + std::to_string(i), i));
  }
  EXPECT_FALSE(table.Insert("piece17", 9));
  EXPECT_FALSE(trie.Insert("piece17", 9));
  EXPECT_FALSE(trie.Insert("", 9));
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(table.Find("piece" + std::to_string(i)), i);
  EXPECT_EQ(table.Find("piece5000"), -1);
  EXPECT_EQ(table.Find(""), -1);
  std::vector<std::pair<std::size_t, int>> found;
  trie.ForEachPrefix("piece123x",
                     [&](std::size_t size, int value) { found.emplace_back(size, value); });
  EXPECT_THAT(found, ElementsAre(std::pair(6, 1), std::pair(7, 12), std::pair(8, 123)));
}

TEST(Bpe, BuffersOfALongWordAreGivenBack) {
  const Model model = RandomModel(1);
  const Bpe bpe(model.Config());
  BpeScratch scratch;
  Ids ids;
  bpe.Encode(RandomLetters(1, 100), &scratch, &ids);
  scratch.Trim();
  EXPECT_GT(scratch.nodes.capacity(), 0u) << "of a shorter one they are kept";
  bpe.Encode(RandomLetters(1, 100'000), &scratch, &ids);
  scratch.Trim();
  EXPECT_EQ(scratch.nodes.capacity() + scratch.heap.capacity() + scratch.symbols.capacity(), 0u);
}

}  // namespace
}  // namespace qlora
