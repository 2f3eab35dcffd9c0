package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/cmd/internal/schemas"
)

// The schemas beside the pages are those that the program prints.
func TestSchema(t *testing.T) {
	t.Parallel()
	schema := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"schema"}, args...), noEnv, &out, &errs)
		return code, out.String(), errs.String()
	}
	for _, name := range schemas.Names {
		code, got, errs := schema(name)
		if code != cli.ExitOK || errs != "" {
			t.Fatalf("%s: exit %d, %s", name, code, errs)
		}
		golden(t, filepath.Join("..", "..", "docs", name+".schema.json"), got)
	}
	code, got, _ := schema("-h")
	if code != cli.ExitOK {
		t.Errorf("-h: exit %d", code)
	}
	golden(t, filepath.Join("testdata", "schema.golden"), got)
	for _, args := range []string{"", "tasks", "limits schedules", "-json limits"} {
		if code, got, errs := schema(strings.Fields(args)...); code != cli.ExitUsage || got != "" || !strings.Contains(errs, "try: ") {
			t.Errorf("%q: exit %d, %s%s", args, code, got, errs)
		}
	}
}
