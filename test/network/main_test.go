package network

import (
	"os"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	redistest.AtOnce(16)
	os.Exit(redistest.Main(m))
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
