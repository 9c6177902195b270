module fulmar.test/agent

go 1.23

require fulmar.example/fulmar v0.1.0

replace fulmar.example/fulmar => ../../../../clients/go
