package network

import (
	"flag"
	"os"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// waiting is how many tests run at once, unless -parallel says otherwise: they wait more
// than they work.
const waiting = "16"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	os.Exit(redistest.Main(m))
}
