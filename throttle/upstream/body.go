package upstream

import (
	"bytes"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"strings"
)

// maxBody is how much of a body is looked at.
const maxBody = 4 << 10

// Body is the beginning of an answer's body, at most 4 KiB. Only a Reader with a Table for it reads any.
type Body []byte

// Contains reports whether a text is in the body, whatever its case.
func (b Body) Contains(text string) bool {
	return strings.Contains(strings.ToLower(string(b)), strings.ToLower(text))
}

// First returns the first value at a path, "" if there is none.
func (b Body) First(path string) string {
	for value := range b.All(path) {
		return value
	}
	return ""
}

// All iterates over the values at a path of a JSON body, as far as that is there: texts without quotes, numbers and booleans as they
// are written. A path has the names of members, joined by dots; lists are looked through.
func (b Body) All(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		walk(d, "", func(at string, value json.Token) bool {
			if at != path {
				return true
			}
			switch v := value.(type) {
			case string:
				return yield(v)
			case json.Number:
				return yield(v.String())
			case bool:
				return yield(map[bool]string{true: "true", false: "false"}[v])
			}
			return true
		})
	}
}

// walk calls visit for each value that is no object and no list, until visit returns false or the text ends, and reports whether to go on.
func walk(d *json.Decoder, path string, visit func(path string, value json.Token) bool) bool {
	token, err := d.Token()
	if err != nil {
		return false
	}
	switch token {
	case json.Delim('['):
		for d.More() {
			if !walk(d, path, visit) {
				return false
			}
		}
	case json.Delim('{'):
		for d.More() {
			name, err := d.Token()
			if err != nil || !walk(d, strings.TrimPrefix(path+"."+name.(string), "."), visit) {
				return false
			}
		}
	default:
		return visit(path, token)
	}
	_, err = d.Token() // the end of the list or the object
	return err == nil
}

// peek reads the beginning of an answer's body, and leaves the body as it was: what was read, an error of that, and the rest.
func peek(resp *http.Response) Body {
	if resp.Body == nil || resp.Body == http.NoBody {
		return nil
	}
	first, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = ended{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first), rest), resp.Body}
	return first
}

// ended is a body of which nothing is left but its error.
type ended struct{ err error }

func (e ended) Read([]byte) (int, error) { return 0, e.err }
