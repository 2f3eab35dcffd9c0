package schedule

import (
	"os"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m))
}

var must = redistest.Must
