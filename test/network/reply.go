package network

import (
	"bytes"
	"strconv"
)

// replyScanner finds where replies begin in what a Redis server sends, in RESP2 and
// RESP3, however it is cut into pieces.
type replyScanner struct {
	header []byte // of a value, as far as it has come
	skip   int    // bytes of a string that are still to come, its line end included
	left   []int  // values that are still to come, by depth
}

// starts returns the offsets in the next piece at which replies begin.
func (s *replyScanner) starts(piece []byte) (at []int) {
	for i := 0; i < len(piece); {
		if s.skip > 0 {
			n := min(s.skip, len(piece)-i)
			i += n
			if s.skip -= n; s.skip == 0 {
				s.valueEnded()
			}
			continue
		}
		if len(s.header) == 0 && len(s.left) == 0 {
			at = append(at, i)
		}
		end := bytes.IndexByte(piece[i:], '\n')
		if end < 0 {
			s.header = append(s.header, piece[i:]...)
			return at
		}
		s.header = append(s.header, piece[i:i+end+1]...)
		i += end + 1
		s.headerEnded()
		s.header = s.header[:0]
	}
	return at
}

// headerEnded goes by the first line of a value.
func (s *replyScanner) headerEnded() {
	n, _ := strconv.Atoi(string(bytes.TrimSpace(s.header[1:])))
	switch s.header[0] {
	case '$', '=', '!': // strings
		if n < 0 {
			s.valueEnded()
			return
		}
		s.skip = n + len("\r\n")
	case '*', '~', '>': // arrays, sets, pushes
		s.nest(n)
	case '%', '|': // maps, attributes
		s.nest(2 * n)
	default: // a line is all
		s.valueEnded()
	}
}

func (s *replyScanner) nest(n int) {
	if n <= 0 {
		s.valueEnded()
		return
	}
	s.left = append(s.left, n)
}

// valueEnded ends a value, and those that it was the last of.
func (s *replyScanner) valueEnded() {
	for top := len(s.left) - 1; top >= 0; top-- {
		if s.left[top]--; s.left[top] > 0 {
			return
		}
		s.left = s.left[:top]
	}
}
