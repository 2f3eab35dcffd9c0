package diag

import (
	"fmt"
	"strings"
)

// Clip returns a short form of s for messages: at most 64 bytes and an ellipsis.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// quoteBytes is the length that Quote prints. It is longer than any valid name, so that only other texts are cut: a payload of a
// megabyte does not belong in an error.
const quoteBytes = 1031

// Quote returns s as a Go string on one line, cut after quoteBytes.
func Quote(s string) string {
	if len(s) <= quoteBytes {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:quoteBytes], len(s))
}

// PathTo returns the path of a name under another path.
func PathTo(path, name string) string {
	if path == "" {
		return PathName(name)
	}
	return path + "." + PathName(name)
}

// PathName returns a name as a path contains it, quoted if the path would otherwise be ambiguous.
func PathName(name string) string {
	const plain = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
	if name != "" && strings.Trim(name, plain) == "" {
		return name
	}
	return Quote(name)
}

// Nearest returns the one of words that a person most likely meant by word: the closest within two typing mistakes, within one
// for words of four letters or fewer, with a letter in common. It returns "" if there is none.
func Nearest(word string, words []string) string {
	const longest = 32 // longer than any known word
	if len(word) > longest {
		return ""
	}
	word = strings.ReplaceAll(strings.ToLower(word), "-", "_")
	best, bestDistance := "", 3
	for _, w := range words {
		d := mistakes(word, strings.ReplaceAll(w, "-", "_"))
		if d < bestDistance && d < len(w) && (d < 2 || len(w) > 4) { // -x is not a mistake for -n
			best, bestDistance = w, d
		}
	}
	return best
}

// Meant returns what to write instead of a word: the word that it is near to, or all words.
func Meant(word string, words []string) string {
	if near := Nearest(word, words); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "write " + OneOf(words)
}

// OneOf returns the words as "a, b or c".
func OneOf(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// mistakes returns the number of bytes to insert, remove or replace that turn a into b.
func mistakes(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
