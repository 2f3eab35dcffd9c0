package main

import (
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	usages "github.com/headway-go/headway/throttle/usage"
)

// checkApp refuses a name that cannot be recorded.
func checkApp(name string) error {
	if err := usages.CheckApp(name); err != nil {
		return &cli.Error{What: "-app: " + strings.TrimPrefix(err.Error(), "usage: "), Try: "-app billing", Err: err}
	}
	return nil
}
