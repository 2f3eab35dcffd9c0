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
