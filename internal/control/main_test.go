package control

import (
	"os"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
