module fulmar.example/fulmar

go 1.23
