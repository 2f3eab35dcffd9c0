package programs

import "syscall"

// childAttr has the kernel end the programs when the test binary dies.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
