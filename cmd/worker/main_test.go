package main

import (
	"os"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // and exits
	}
	cli.RouteRedisLog(nil)
	os.Exit(redistest.Main(m))
}
