package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
)

// encoding/json takes the last of two equal names, matches names without regard
// to case and turns half a surrogate pair into U+FFFD, all without a word. A
// line that says two things must be refused, so objects are taken apart here.

// object returns raw without the spaces around it when it is one JSON object,
// otherwise the reason why it is none.
func object(raw []byte) (trimmed []byte, reason string) {
	raw = bytes.Trim(raw, jsonSpace)
	if json.Valid(raw) {
		if k := kindOf(raw); k != "an object" {
			return nil, "want one JSON object, got " + k
		}
		return raw, ""
	}
	err := json.Unmarshal(raw, new(json.RawMessage))
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, fmt.Sprintf("not JSON at byte %d: %v", se.Offset, err)
	}
	return nil, "not JSON"
}

const jsonSpace = " \t\r\n"

// members calls f with the name and the value of each member of a JSON object
// in turn, both as they are written. obj is an object that json.Valid accepts,
// without spaces around it.
func members(obj []byte, f func(name, value []byte)) {
	rest := skipSpace(obj[1:])
	for rest[0] != '}' {
		var name, value []byte
		name, rest = cutValue(rest)
		rest = skipSpace(skipSpace(rest)[1:]) // the colon
		value, rest = cutValue(rest)
		f(name, value)
		rest = skipSpace(rest)
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
}

func skipSpace(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t' || text[0] == '\r' || text[0] == '\n') {
		text = text[1:]
	}
	return text
}

// cutValue splits valid JSON text after the value with which it begins.
func cutValue(text []byte) (value, rest []byte) {
	end := 0
	switch text[0] {
	case '"':
		end = stringEnd(text)
	case '{', '[':
		for depth := 0; ; {
			switch text[end] {
			case '"':
				end += stringEnd(text[end:])
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			end++
			if depth == 0 {
				break
			}
		}
	default:
		end = bytes.IndexAny(text, ",}]"+jsonSpace)
	}
	return text[:end], text[end:]
}

// stringEnd returns the length of the JSON string with which text begins.
func stringEnd(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// kindOf names a JSON value for a message.
func kindOf(value []byte) string {
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// unquote returns what a valid JSON string says, or the reason why it cannot be
// had without loss.
func unquote(value []byte) (text, reason string) {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1]), ""
	}
	if half := halfSurrogate(value); half != "" {
		return "", half + " is half a surrogate pair, which is no character"
	}
	if err := json.Unmarshal(value, &text); err != nil {
		return "", err.Error()
	}
	return text, ""
}

// halfSurrogate returns the first \u escape that needs another beside it and
// has none, or "".
func halfSurrogate(value []byte) string {
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' {
			continue
		}
		i++ // now at the letter of the escape
		if value[i] != 'u' {
			continue
		}
		r := escaped(value[i:])
		if !utf16.IsSurrogate(r) {
			continue
		}
		next := value[i+5:]
		if len(next) < 6 || next[0] != '\\' || next[1] != 'u' ||
			utf16.DecodeRune(r, escaped(next[1:])) == '\uFFFD' {
			return string(value[i-1 : i+5])
		}
		i += 10 // the last digit of the second escape
	}
	return ""
}

// escaped reads uXXXX.
func escaped(text []byte) rune {
	n, _ := strconv.ParseUint(string(text[1:5]), 16, 32) // valid JSON has four digits there
	return rune(n)
}

// nameSet is the names of one object. Almost all objects have few, for which a
// list is faster than a map; a hostile one has many.
type nameSet struct {
	few  [16]string
	n    int
	many map[string]bool
}

// add answers false when the name is there already.
func (s *nameSet) add(name string) bool {
	if slices.Contains(s.few[:s.n], name) || s.many[name] {
		return false
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	if s.many == nil {
		s.many = make(map[string]bool)
	}
	s.many[name] = true
	return true
}
