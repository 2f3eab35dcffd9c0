//go:build ignore

// The program print writes expanded scripts to its standard output: go run ./lua/print.go decide dispatch.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/headway-go/headway/lua"
)

func main() {
	all := append(lua.All(), lua.OnAsynq()...)
	for _, name := range os.Args[1:] {
		i := slices.IndexFunc(all, func(s *lua.Script) bool { return s.Name == name })
		if i < 0 {
			fmt.Fprintf(os.Stderr, "no script %q; try: ls lua/*.lua lua/asynq\n", name)
			os.Exit(2)
		}
		fmt.Print(all[i].Source())
	}
}
