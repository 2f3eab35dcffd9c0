package queue_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/headway-go/headway/queue"
)

const mailLine = `{"type":"mail","scope":"a","id":"%s"}`

func mail(id string) string { return strings.Replace(mailLine, "%s", id, 1) }

// summarise writes entries as "line:id" or "line:reason".
func summarise(r *queue.Reader) []string {
	var got []string
	for e := range r.All() {
		switch {
		case e.Err != nil:
			got = append(got, fmt.Sprintf("%d:%s", e.Line, strings.TrimPrefix(e.Err.Error(), "queue: invalid task: ")))
		default:
			got = append(got, fmt.Sprintf("%d:%s", e.Line, e.Task.ID))
		}
	}
	return got
}

func TestReader(t *testing.T) {
	t.Parallel()
	long := mail(strings.Repeat("x", 70<<10)) // longer than the buffer, too long an id
	fits := `{"type":"mail","scope":"a","id":"fits","payload":"` + strings.Repeat("x", 900<<10) + `"}`
	exact := strings.Repeat(" ", queue.MaxLine-len(mail("e"))) + mail("e")
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":            {"", nil},
		"newlines alone":   {"\n\n\r\n \t\n", nil},
		"one":              {mail("a") + "\n", []string{"1:a"}},
		"no newline":       {mail("a") + "\n" + mail("b"), []string{"1:a", "2:b"}},
		"blank lines":      {"\n" + mail("a") + "\n \n\n" + mail("b") + "\n\n", []string{"2:a", "5:b"}},
		"CRLF":             {mail("a") + "\r\n\r\n" + mail("b") + "\r\n", []string{"1:a", "3:b"}},
		"byte order mark":  {"\ufeff" + mail("a") + "\n" + mail("b"), []string{"1:a", "2:b"}},
		"mark elsewhere":   {mail("a") + "\n\ufeff" + mail("b"), []string{"1:a", "2:not JSON at byte 1: invalid character 'ï' looking for beginning of value"}},
		"UTF-16":           {"\xff\xfe{\x00}\x00\n\x00", []string{"1:not valid UTF-8", "2:not JSON at byte 1: invalid character '\\x00' looking for beginning of value"}},
		"bad among good":   {mail("a") + "\n{\n" + mail("b") + "\n\xff\n" + mail("c"), []string{"1:a", "2:not JSON at byte 1: unexpected end of JSON input", "3:b", "4:not valid UTF-8", "5:c"}},
		"above the buffer": {long + "\n" + fits + "\n" + mail("b"), []string{"1:id: 71680 bytes long; 256 at most", "2:fits", "3:b"}},
		"as long as may be": {
			exact + "\r\n " + exact + "\n" + mail("b"),
			[]string{"1:e", "2:longer than 1048576 bytes", "3:b"},
		},
		"far too long":   {strings.Repeat("x", 5<<20) + "\n" + mail("b"), []string{"1:longer than 1048576 bytes", "2:b"}},
		"too long, last": {mail("a") + "\n" + strings.Repeat("x", 2<<20), []string{"1:a", "2:longer than 1048576 bytes"}},
	} {
		for way, r := range map[string]io.Reader{"": strings.NewReader(tt.text), ", halved": iotest.HalfReader(strings.NewReader(tt.text))} {
			if got := summarise(queue.NewReader(r)); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("%s%s:\ngot  %.300q\nwant %.300q", name, way, got, tt.want)
			}
		}
	}
}

// TestReaderSourceFails holds that an unreadable source ends the entries with
// its error, and that the half line before it is no task.
func TestReaderSourceFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	r := queue.NewReader(io.MultiReader(strings.NewReader(mail("a")+"\n"+mail("b")), iotest.ErrReader(broken)))
	var last queue.Entry
	n := 0
	for e := range r.All() {
		last = e
		n++
	}
	if n != 2 || !errors.Is(last.Err, broken) || last.Err.Error() != "queue: read after line 1: disk on fire" {
		t.Errorf("%d entries, the last %+v", n, last)
	}
	if e := r.Next(); e.Err == nil {
		t.Errorf("after the end: %+v", e)
	}
}
