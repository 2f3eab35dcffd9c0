package zz

import (
	"fmt"
	"testing"

	"github.com/headway-go/headway/lua"
)

func TestSHA(t *testing.T) {
	for _, s := range append(lua.All(), lua.TakeTasks, lua.ReleaseTasks, lua.ParkTasks) {
		for _, k := range []string{"", "S", "T"} {
			v := s.For(k)
			fmt.Println(v.SHA[:10], s.Name, k)
		}
	}
}
