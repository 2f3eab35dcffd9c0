package network

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

// A scanner finds where each reply begins, wherever the pieces end.
func TestReplyScanner(t *testing.T) {
	t.Parallel()
	replies := []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$-1\r\n", "$0\r\n\r\n", "$6\r\na\r\nb\r\n\r\n", "*-1\r\n", "*0\r\n",
		"*2\r\n$1\r\na\r\n*2\r\n:1\r\n*1\r\n+x\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "=5\r\ntxt:a\r\n",
		"!5\r\nERR a\r\n", "%2\r\n+a\r\n*2\r\n:1\r\n:2\r\n+b\r\n%0\r\n", "~2\r\n:1\r\n:2\r\n", ">3\r\n+message\r\n+c\r\n$2\r\nhi\r\n", "+last\r\n",
	}
	var all []byte
	var want []int
	for _, r := range replies {
		want = append(want, len(all))
		all = append(all, r...)
	}
	for size := 1; size <= len(all); size++ {
		var s replyScanner
		var got []int
		for from := 0; from < len(all); from += size {
			for _, at := range s.starts(all[from:min(from+size, len(all))]) {
				got = append(got, from+at)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("in pieces of %d: %d replies, want %d", size, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("in pieces of %d: reply %d begins at %d, want %d", size, i, got[i], want[i])
			}
		}
	}
}
