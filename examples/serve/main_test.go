package main

import (
	"bytes"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(&out, "", "limits.yaml"); err != nil {
		t.Fatal(err)
	}
	const want = `charge 0 may start: true
charge 1 may start: true
charge 2 may start: true
charge 3 may start: true
charge 4 may start: true
reserved 4000 tokens, 6000 remain
settled at 1200, and one more: 8799 remain
lease one: true
lease two: false
renew one: true
release one: true
lease two: true
`
	if out.String() != want {
		t.Errorf("it printed\n%s", out.String())
	}
}
