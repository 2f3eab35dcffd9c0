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

// encoding/json takes the last of two equal names, matches names case-insensitively, and replaces an
// unpaired surrogate by U+FFFD, all without an error. An ambiguous line must be refused, so this file
// parses objects itself.

// object returns raw without the surrounding spaces if it is one JSON object, and otherwise the reason
// why it is not.
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

// members calls f with the name and the value of each member of a JSON object in turn, both in their
// encoded form. obj is an object that json.Valid accepts, without surrounding spaces.
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

// cutValue splits valid JSON text after its first value.
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

// stringEnd returns the length of the JSON string at the start of text.
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

// unquote returns the decoded content of a valid JSON string, or the reason why it cannot be decoded
// without loss.
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

// halfSurrogate returns the first \u escape that is an unpaired surrogate, or "".
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

// escaped decodes uXXXX.
func escaped(text []byte) rune {
	n, _ := strconv.ParseUint(string(text[1:5]), 16, 32) // valid JSON has four digits there
	return rune(n)
}

// nameSet is the set of names of one object. Almost all objects have few names, for which a list is
// faster than a map; a hostile one has many.
type nameSet struct {
	few  [16]string
	n    int
	many map[string]bool
}

// add returns false if the name is present already.
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
