package diag

import (
	"fmt"
	"strings"
)

// Nearest returns the one of words that a person most likely meant by word: the closest within two
// typing mistakes, within one for words of four letters or fewer, with a letter in common. It returns "" if
// there is none.
func Nearest(word string, words []string) string {
	const longest = 32 // longer than any known word
	if len(word) > longest {
		return ""
	}
	word = strings.ReplaceAll(strings.ToLower(word), "-", "_")
	best, bestDistance := "", 3
	for _, w := range words {
		most := 2
		if len(w) <= 4 {
			most = 1
		}
		d := mistakes(word, strings.ReplaceAll(w, "-", "_"))
		if d <= most && d < len(w) && d < bestDistance { // -x is not a mistake for -n
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
