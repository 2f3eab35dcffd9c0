package llm

// maxKept bounds each value that a scanner keeps, and maxName the names that it compares.
const (
	maxKept = 64 << 10
	maxName = 24
)

// scanner finds a few values in JSON objects as they pass, and keeps nothing else of them: an answer may be a stream of hours, or have
// megabytes of images. It takes objects from any text, one behind the other, so that it reads a document, a list of them and the lines of
// server-sent events alike. What cannot be JSON ends an object, and the next one begins anew.
type scanner struct {
	wants func(path string) bool         // by its names, joined by dots: two at most
	found func(values map[string][]byte) // called at the end of an object that has any

	depth   int
	text    bool      // within a string
	escaped bool      // after a backslash in it
	names   bool      // the next string is a name, at depth 1 or 2
	object  [2]bool   // what depth 1 and 2 are, else a list
	path    [2]string // the names there
	name    []byte    // of the string that is read
	keeps   int       // the depth of the name whose value is kept, 0 for none
	kept    []byte
	values  map[string][]byte
}

// Write reads on. It takes all of p.
func (s *scanner) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case s.depth == 0 && b == '{':
			s.depth, s.text, s.names, s.object[0], s.keeps, s.values = 1, false, true, true, 0, nil
		case s.depth == 0:
		case s.text:
			s.inText(b)
		default:
			s.between(b)
		}
	}
	return len(p), nil
}

// inText reads a byte of a string.
func (s *scanner) inText(b byte) {
	s.keep(b)
	switch {
	case b < ' ':
		s.depth = 0
	case s.escaped:
		s.escaped = false
	case b == '\\':
		s.escaped = true
	case b == '"':
		s.text = false
		return
	}
	if s.names && len(s.name) < maxName {
		s.name = append(s.name, b)
	}
}

// between reads a byte outside of strings.
func (s *scanner) between(b byte) {
	if s.keeps == s.depth && (b == ',' || b == '}' || b == ']') {
		s.end()
	}
	s.keep(b)
	switch b {
	case '"':
		s.text, s.escaped, s.name = true, false, s.name[:0]
	case ':':
		s.value()
	case ',':
		s.names = s.depth <= 2 && s.object[s.depth-1]
	case '{', '[':
		s.depth++
		s.names = s.depth == 2 && b == '{'
		if s.depth == 2 {
			s.object[1] = s.names
		}
	case '}', ']':
		s.names = false
		if s.depth--; s.depth == 0 && len(s.values) > 0 {
			s.found(s.values)
		}
	default:
		if !isPlain(b) {
			s.depth = 0
		}
	}
}

// isPlain reports whether a byte may stand in a number, in true, false and null, or between values.
func isPlain(b byte) bool {
	switch b {
	case ' ', '\t', '\r', '\n', '-', '+', '.', 'e', 'E', 't', 'r', 'u', 'f', 'a', 'l', 's', 'n':
		return true
	}
	return '0' <= b && b <= '9'
}

// value begins the value of a name, and keeps it if it is wanted.
func (s *scanner) value() {
	if !s.names {
		return
	}
	s.names = false
	s.path[s.depth-1] = string(s.name)
	if s.keeps == 0 && s.wants(s.at()) {
		s.keeps, s.kept = s.depth, s.kept[:0]
	}
}

// at returns the path of the name that was read last.
func (s *scanner) at() string {
	if s.depth == 1 {
		return s.path[0]
	}
	return s.path[0] + "." + s.path[1]
}

func (s *scanner) keep(b byte) {
	if s.keeps == 0 {
		return
	}
	if s.kept = append(s.kept, b); len(s.kept) > maxKept {
		s.depth = 0
	}
}

// end ends the value that is kept.
func (s *scanner) end() {
	if s.values == nil {
		s.values = map[string][]byte{}
	}
	s.values[s.at()] = append([]byte(nil), s.kept...)
	s.keeps = 0
}
