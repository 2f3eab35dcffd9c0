// Package bench holds benchmarks that run a peer beside us in the same run.
package bench

import (
	"os"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
