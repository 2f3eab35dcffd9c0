package cli

import (
	"errors"
	"flag"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// AllowMethodFlag adds the flag -allow-method, which may be given more than once, to fs. Each
// value is a method that tasks of type http may have besides the standard ones.
func AllowMethodFlag(fs *flag.FlagSet, methods *[]string) {
	ListVar(fs, methods, "allow-method", func(method string) error {
		if reason := httpsyntax.MethodFault(method); reason != "" {
			return errors.New(reason)
		}
		return nil
	})
}
